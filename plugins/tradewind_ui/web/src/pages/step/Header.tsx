import { Alert, Badge, Code, DataList, Heading, HStack, Link, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { formatSince, formatTime } from "../../components/format";
import { DataLink } from "./DataLink";
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

const DECISIONS: Record<string, string> = {
  BLOCKED: "This run cannot make it",
  PRUNED: "This run does not need it",
  REUSE: "This run reuses it",
  RUN: "This run makes it",
  WAIT: "This run waits for it",
};

const why = ({ decision, reason }: About) => {
  const what = decision === null || decision === undefined ? undefined : (DECISIONS[decision] ?? decision);
  return [what, reason].filter((part) => part !== undefined && part !== null && part !== "").join(": ");
};

/** What the step is, its state, and why the run made or reused it. */
export const Header = ({ about }: { readonly about: About }) => {
  const [state, palette] = STATES[about.state ?? ""] ?? ["state unknown", "gray"];
  const reason = why(about);
  const written = about.written_at;

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
        </Badge>
        {about.is_forced ? <Badge size="md">forced</Badge> : undefined}
      </HStack>
      {reason === "" ? undefined : <Text overflowWrap="anywhere">{reason}</Text>}
      {about.problem === null || about.problem === undefined ? undefined : (
        <Alert.Root status="warning">
          <Alert.Indicator />
          <Alert.Description overflowWrap="anywhere">{about.problem}</Alert.Description>
        </Alert.Root>
      )}
      <DataList.Root gap={2} orientation="horizontal" size="sm">
        <Fact name="Output">
          <DataLink path={about.output_path} />
        </Fact>
        {about.producer ? <Fact name="Producer">{about.producer}</Fact> : undefined}
        {typeof written === "number" ? (
          <Fact name={about.state === "at work" ? "Last sign" : "Since"}>
            <span title={formatTime(written)}>{formatSince(written)}</span>
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
