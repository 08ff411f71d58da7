import { Button, Field, HStack, NativeSelect, Wrap } from "@chakra-ui/react";

import type { Schemas } from "../../api/client";
import { hasFilter, NO_FILTER } from "./address";
import type { ChangeView, View } from "./address";
import { UNKNOWN_EXPERIMENT } from "./columns";
import { SearchInput } from "../../components/SearchInput";
import { LABELS, STATES, STATE_MEANINGS } from "../../components/states";
import type { State } from "../../components/states";

type Props = {
  readonly change: ChangeView;
  readonly experiments: readonly Schemas["StateCounts"][];
  readonly view: View;
};

const ALL = "all";
/** Before the name in an option's value, so that no experiment's name is taken for the option of all. */
const ONE = "one:";

const count = ({ states }: Schemas["StateCounts"]) => Object.values(states).reduce((sum, each) => sum + each, 0);

const Pressed = ({ isOn, label, onClick, title }: { readonly isOn: boolean; readonly label: string; readonly onClick: () => void; readonly title?: string }) => (
  <Button aria-pressed={isOn} onClick={onClick} size="xs" title={title} variant={isOn ? "solid" : "outline"}>
    {label}
  </Button>
);

/** What limits the outputs that the table shows. */
export const Filters = ({ change, experiments, view }: Props) => {
  const toggle = (state: State) =>
    change({ states: view.states.includes(state) ? view.states.filter((each) => each !== state) : [...view.states, state] });

  return (
    <>
      <HStack align="end" flexWrap="wrap" gap={3}>
        <Field.Root maxW="280px">
          <Field.Label>Step or path</Field.Label>
          <SearchInput onChange={(text) => change({ text })} value={view.text} />
        </Field.Root>
        <Field.Root maxW="280px">
          <Field.Label>Experiment</Field.Label>
          <NativeSelect.Root size="sm">
            <NativeSelect.Field
              onChange={({ target: { value } }) =>
                change({ experiment: value.startsWith(ONE) ? value.slice(ONE.length) : undefined })
              }
              value={view.experiment === undefined ? ALL : `${ONE}${view.experiment}`}
            >
              <option value={ALL}>All</option>
              {experiments.map((each) => (
                <option key={each.name} value={`${ONE}${each.name}`}>
                  {`${each.name === "" ? UNKNOWN_EXPERIMENT : each.name} (${count(each)})`}
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
        </Field.Root>
        <Field.Root maxW="220px">
          <Field.Label>Made by</Field.Label>
          <SearchInput
            onChange={(producer) => change({ producer })}
            placeholder="DAG, run or script"
            value={view.producer}
          />
        </Field.Root>
      </HStack>
      <Wrap aria-label="States" gap={2} role="group">
        {STATES.map((state) => (
          <Pressed
            isOn={view.states.includes(state)}
            key={state}
            label={LABELS[state]}
            onClick={() => toggle(state)}
            title={STATE_MEANINGS[state]}
          />
        ))}
        <Pressed isOn={view.isPinned} label="pinned" onClick={() => change({ isPinned: !view.isPinned })} />
        {hasFilter(view) ? (
          <Button onClick={() => change(NO_FILTER)} size="xs" variant="ghost">
            Show all
          </Button>
        ) : null}
      </Wrap>
    </>
  );
};
