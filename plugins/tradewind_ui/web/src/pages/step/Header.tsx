import { Alert, Badge, Code, DataList, Heading, HStack, Link, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { DataLink } from "../../components/DataLink";
import { formatSince, formatTime } from "../../components/format";
import { runLink, stepLink } from "../../components/links";
import { Sentence } from "../../components/Sentence";
import type { About } from "./queries";

/** What each state of an output is called, and its color. */
const STATES: Record<string, readonly [string, string]> = {
  "at work": ["at work", "blue"],
  failed: ["failed", "red"],
  finished: ["finished", "green"],
  gone: ["output gone", "red"],
  none: ["never ran", "gray"],
  stopped: ["stopped", "orange"],
  "unreadable lease": ["unreadable lease", "red"],
};

const Fact = ({ children, name }: { readonly children: ReactNode; readonly name: string }) => (
  <DataList.Item>
    <DataList.ItemLabel minW="24">{name}</DataList.ItemLabel>
    <DataList.ItemValue display="block" minW={0} overflowWrap="anywhere">
      {children}
    </DataList.ItemValue>
  </DataList.Item>
);

const PageLink = ({ children, to }: { readonly children: string; readonly to: string }) => (
  <Link asChild color="fg.info">
    <RouterLink to={to}>{children}</RouterLink>
  </Link>
);

/** What the plan decided, and its color. */
const DECISIONS: Record<string, readonly [string, string]> = {
  BLOCKED: ["blocked", "red"],
  PRUNED: ["not needed", "gray"],
  REUSE: ["reuse", "green"],
  RUN: ["run", "blue"],
  WAIT: ["wait", "yellow"],
};

/** What the time of the last write to the record means. */
const WRITTEN: Record<string, string> = {
  "at work": "Last sign",
  failed: "Failed",
  finished: "Finished",
  stopped: "Stopped",
};

/** What the step is, its state, and why the run made or reused it. */
export const Header = ({ about }: { readonly about: About }) => {
  const [state, palette] = STATES[about.state ?? ""] ?? ["state unknown", "gray"];
  const { decision, made_by, reason, written_at } = about;
  const maker = made_by && about.is_by_other_run ? (stepLink(made_by) ?? runLink(made_by)) : undefined;
  const [decided, decidedPalette] = DECISIONS[decision ?? ""] ?? [decision ?? "", "gray"];

  return (
    <Stack gap={3}>
      <HStack flexWrap="wrap" gap={3}>
        <Heading as="h1" overflowWrap="anywhere" size="xl">
          {about.name}
        </Heading>
        <Code size="md">{about.hash}</Code>
        <Badge colorPalette={palette} size="md">
          {state}
          {about.attempt > 0 && about.state === "at work" ? `, attempt ${about.attempt}` : ""}
          {about.is_by_other_run ? ", by another run" : ""}
        </Badge>
        {maker !== undefined ? <PageLink to={maker}>Open that run</PageLink> : undefined}
        {about.is_forced ? <Badge size="md">forced</Badge> : undefined}
      </HStack>
      {decided === "" ? undefined : (
        <Text overflowWrap="anywhere">
          The plan of this run: <Badge colorPalette={decidedPalette}>{decided}</Badge> <Sentence text={reason ?? ""} />
        </Text>
      )}
      {about.problem === null || about.problem === undefined ? undefined : (
        <Alert.Root status="warning">
          <Alert.Indicator />
          <Alert.Description overflowWrap="anywhere">
            <Sentence text={about.problem} />
          </Alert.Description>
        </Alert.Root>
      )}
      <DataList.Root gap={2} orientation="horizontal" size="sm">
        <Fact name="Output">
          <DataLink path={about.output_path} />
        </Fact>
        {about.producer ? (
          <Fact name="Producer">
            {maker === undefined ? about.producer : <PageLink to={maker}>{about.producer}</PageLink>}
          </Fact>
        ) : undefined}
        {typeof written_at === "number" ? (
          <Fact name={WRITTEN[about.state ?? ""] ?? "Changed"}>
            {formatSince(written_at)}, {formatTime(written_at)}
          </Fact>
        ) : undefined}
        {about.place ? <Fact name="Runs on">{about.place}</Fact> : undefined}
        {about.estimate ? <Fact name="Estimate">{about.estimate}</Fact> : undefined}
        {about.links.length === 0 ? undefined : (
          <Fact name="Links">
            <HStack flexWrap="wrap" gap={4}>
              {about.links.map(({ name, url }) => (
                <Link color="fg.info" href={url} key={name} rel="noreferrer" target="_blank">
                  {name} ↗
                </Link>
              ))}
            </HStack>
          </Fact>
        )}
      </DataList.Root>
    </Stack>
  );
};
