import { Button, HStack, NativeSelect, SegmentGroup, Text } from "@chakra-ui/react";
import { useCallback } from "react";

import { DECISIONS, MEANINGS, PALETTES } from "../../components/decisions";
import type { Decision } from "../../components/decisions";
import { SearchInput } from "../../components/SearchInput";
import { formatCount } from "../../components/format";
import type { View } from "./address";
import { changedInputs, countDecisions, countsOf } from "./model";
import type { Step } from "./model";

type Props = {
  readonly change: (change: Partial<View>) => void;
  readonly shown: number;
  readonly steps: ReadonlyArray<Step>;
  readonly view: View;
};

const toggled = (decisions: ReadonlyArray<Decision>, decision: Decision): ReadonlyArray<Decision> =>
  decisions.includes(decision) ? decisions.filter((each) => each !== decision) : [...decisions, decision];

const InputFilter = ({ change, steps, view }: Pick<Props, "change" | "steps" | "view">) => {
  const inputs = changedInputs(steps);
  if (inputs.length === 0) {
    return undefined;
  }
  return (
    <NativeSelect.Root size="xs" w="auto">
      <NativeSelect.Field
        aria-label="Filter steps by the input that changed"
        maxW="18rem"
        onChange={(event) => change({ input: event.target.value })}
        value={view.input}
      >
        <option value="">Any changed input</option>
        {inputs.map(([name, count]) => (
          <option key={name} value={name}>
            {name} ({formatCount(count)})
          </option>
        ))}
      </NativeSelect.Field>
      <NativeSelect.Indicator />
    </NativeSelect.Root>
  );
};

/** The counts by decision, which filter, and the other filters. */
export const Summary = ({ change, shown, steps, view }: Props) => {
  const counts = countDecisions(steps);
  const filterByName = useCallback((name: string) => change({ name }), [change]);

  return (
    <HStack flexWrap="wrap" gap={2}>
      <Text aria-live="polite" fontWeight="semibold">
        {countsOf(shown, steps.length)}
      </Text>
      {DECISIONS.filter((decision) => counts[decision] > 0).map((decision) => {
        const isOn = view.decisions.includes(decision);
        return (
          <Button
            aria-pressed={isOn}
            borderRadius="full"
            colorPalette={PALETTES[decision]}
            key={decision}
            onClick={() => change({ decisions: toggled(view.decisions, decision) })}
            size="xs"
            title={MEANINGS[decision]}
            variant={isOn ? "solid" : "subtle"}
          >
            {formatCount(counts[decision])} {decision}
          </Button>
        );
      })}
      <SearchInput
        aria-label="Filter steps by name"
        onChange={filterByName}
        placeholder="Filter by name"
        size="xs"
        value={view.name}
        w="14rem"
      />
      <InputFilter change={change} steps={steps} view={view} />
      {shown < steps.length ? (
        <Button onClick={() => change({ decisions: [], input: "", name: "" })} size="xs" variant="ghost">
          Show all
        </Button>
      ) : undefined}
      <SegmentGroup.Root
        aria-label="View"
        ms="auto"
        onValueChange={({ value }) => change({ view: value === "table" ? "table" : "graph" })}
        size="xs"
        value={view.view}
      >
        <SegmentGroup.Indicator />
        <SegmentGroup.Items
          items={[
            { label: "Graph", value: "graph" },
            { label: "Table", value: "table" },
          ]}
        />
      </SegmentGroup.Root>
    </HStack>
  );
};
