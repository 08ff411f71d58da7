import { Badge, Box, CloseButton, DataList, HStack, Heading, Link, Stack, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { DecisionBadge, MEANINGS } from "../../components/decisions";
import { dataLink, runLink, stepLink } from "../../components/links";
import { Sentence } from "../../components/Sentence";
import { History } from "./History";
import { marksOf } from "./model";
import type { Step } from "./model";

type Props = {
  readonly close: () => void;
  readonly dagId: string;
  /** Opens another step of the plan by its name, or by `name-hash`; does nothing if there is none. */
  readonly open: (name: string) => void;
  readonly runId: string;
  readonly step: Step;
};

const Item = ({ children, label }: { readonly children: ReactNode; readonly label: string }) => (
  <DataList.Item>
    <DataList.ItemLabel minW="7rem">{label}</DataList.ItemLabel>
    <DataList.ItemValue minW={0} overflowWrap="anywhere">
      {children}
    </DataList.ItemValue>
  </DataList.Item>
);

const To = ({ children, to }: { readonly children: ReactNode; readonly to: string | undefined }) =>
  to === undefined ? (
    children
  ) : (
    <Link asChild color="fg.info" overflowWrap="anywhere">
      <RouterLink to={to}>{children}</RouterLink>
    </Link>
  );

const isText = (value: string | null | undefined): value is string => value !== null && value !== undefined;

const Facts = ({ dagId, runId, step }: Pick<Props, "dagId" | "runId" | "step">) => (
  <DataList.Root orientation="horizontal" size="sm">
    <Item label="Reason">
      <Text as="span">
        <Sentence text={step.reason} />
      </Text>
    </Item>
    <Item label="Version">
      <Text fontFamily="mono">{step.hash}</Text>
    </Item>
    {isText(step.producer) ? (
      <Item label={step.decision === "WAIT" ? "Made now by" : "Made by"}>
        <To to={runLink({ dag: step.producer_dag ?? "", run: step.producer_run ?? "" })}>{step.producer}</To>
      </Item>
    ) : undefined}
    {(step.attempt ?? 0) > 0 ? <Item label="Attempt">{step.attempt}, the newest when the plan was made</Item> : undefined}
    {isText(step.estimate) ? <Item label="Estimate">{step.estimate}</Item> : undefined}
    {isText(step.place) ? <Item label="Runs on">{step.place}</Item> : undefined}
    <Item label="Output">
      <To to={dataLink(step.output_path)}>{step.output_path}</To>
    </Item>
    <Item label="Task">
      <To to={stepLink({ dag: dagId, map_index: -1, run: runId, task: step.task_id })}>{step.task_id}</To>
    </Item>
  </DataList.Root>
);

/** Everything that the plan says of one step, and its earlier versions. */
export const StepPanel = ({ close, dagId, open, runId, step }: Props) => {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), [step.task_id]);

  return (
    <Box
      aria-label={`Step ${step.name}`}
      as="section"
      borderRadius="md"
      borderWidth={1}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          close();
        }
      }}
      overflowY="auto"
      p={3}
    >
      <Stack gap={3}>
        <HStack alignItems="start" justifyContent="space-between">
          <Heading as="h3" outline="none" overflowWrap="anywhere" ref={heading} size="md" tabIndex={-1}>
            {step.name}
          </Heading>
          <CloseButton aria-label="Close the step" onClick={close} size="xs" />
        </HStack>
        <HStack flexWrap="wrap" gap={1}>
          <DecisionBadge decision={step.decision} />
          {marksOf(step).map((mark) => (
            <Badge colorPalette="orange" key={mark}>
              {mark}
            </Badge>
          ))}
          <Text color="fg.muted" fontSize="sm">
            {MEANINGS[step.decision]}.
          </Text>
        </HStack>
        <Facts dagId={dagId} runId={runId} step={step} />
        <History dagId={dagId} key={step.task_id} open={open} runId={runId} step={step} />
      </Stack>
    </Box>
  );
};
