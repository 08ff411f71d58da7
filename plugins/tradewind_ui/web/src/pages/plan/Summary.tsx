import { Button, Field, HStack, Input, NativeSelect, SegmentGroup, Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";

import { pluralize } from "../../components/format";
import type { View } from "./address";
import { DECISIONS, MEANINGS, PALETTES, changedInputs, countDecisions } from "./model";
import type { Decision, Step } from "./model";

type Props = {
  readonly change: (change: Partial<View>) => void;
  readonly shown: number;
  readonly steps: ReadonlyArray<Step>;
  readonly view: View;
};

/** How long typing pauses before the steps are filtered, in ms. */
const PAUSE = 200;

const toggled = (decisions: ReadonlyArray<Decision>, decision: Decision): ReadonlyArray<Decision> =>
  decisions.includes(decision) ? decisions.filter((each) => each !== decision) : [...decisions, decision];

const NameFilter = ({ change, view }: Pick<Props, "change" | "view">) => {
  const [text, setText] = useState(view.name);

  useEffect(() => {
    const timer = setTimeout(() => {
      if (text !== view.name) {
        change({ name: text });
      }
    }, PAUSE);
    return () => clearTimeout(timer);
    // Only typing starts the timer.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [text]);

  return (
    <Field.Root w="auto">
      <Input
        aria-label="Filter steps by name"
        onChange={(event) => setText(event.target.value)}
        placeholder="Filter by name"
        size="xs"
        type="search"
        value={text}
        w="14rem"
      />
    </Field.Root>
  );
};

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
            {name} ({count})
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

  return (
    <HStack flexWrap="wrap" gap={2}>
      <Text aria-live="polite" fontWeight="semibold">
        {shown === steps.length ? pluralize(steps.length, "step") : `${shown} of ${pluralize(steps.length, "step")}`}
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
            {counts[decision]} {decision}
          </Button>
        );
      })}
      <NameFilter change={change} key={view.name === "" ? "empty" : "filled"} view={view} />
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
