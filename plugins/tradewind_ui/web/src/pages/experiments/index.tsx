import { Box, Heading, Tabs, VStack } from "@chakra-ui/react";

import { NO_FILTER, TABS, useView } from "./address";
import type { Tab } from "./address";
import { Files } from "./Files";
import { Leaderboards } from "./Leaderboards";
import { Outputs } from "./Outputs";
import { PrefixForm } from "./PrefixForm";
import { useOutputs } from "./queries";

const TITLES: Record<Tab, string> = {
  files: "Experiment files",
  leaderboards: "Leaderboards",
  outputs: "Outputs",
};

/** All outputs with records below a prefix, by experiment; and leaderboards of evaluations and speedruns. */
const Experiments = () => {
  const [view, change] = useView();
  // The outputs' first page says which roots there are, and which of them is shown without a choice.
  const first = useOutputs(view).data?.pages[0];
  const prefix = view.prefix || (first?.prefix ?? "");

  return (
    <Box h="full" overflowY="auto" p={4}>
      <VStack align="stretch" gap={4}>
        <Heading as="h1" size="xl">
          Experiments
        </Heading>
        <PrefixForm
          key={prefix}
          onChange={(next) => change({ ...NO_FILTER, prefix: next })}
          prefix={prefix}
          roots={first?.roots ?? []}
        />
        <Tabs.Root
          lazyMount
          onValueChange={({ value }) => change({ tab: TABS.find((tab) => tab === value) ?? "outputs" })}
          unmountOnExit
          value={view.tab}
        >
          <Tabs.List>
            {TABS.map((tab) => (
              <Tabs.Trigger key={tab} value={tab}>
                {TITLES[tab]}
              </Tabs.Trigger>
            ))}
          </Tabs.List>
          <Tabs.Content value="outputs">
            <Outputs change={change} view={view} />
          </Tabs.Content>
          <Tabs.Content value="files">
            <Files change={change} prefix={view.prefix} />
          </Tabs.Content>
          <Tabs.Content value="leaderboards">
            <Leaderboards change={change} view={view} />
          </Tabs.Content>
        </Tabs.Root>
      </VStack>
    </Box>
  );
};

export default Experiments;
