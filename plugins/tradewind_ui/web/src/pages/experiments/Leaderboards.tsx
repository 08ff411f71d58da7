import { Button, Field, HStack, Text, VStack } from "@chakra-ui/react";
import { useState } from "react";

import { Empty } from "../../components/Empty";
import { pluralize } from "../../components/format";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import type { ChangeView, View } from "./address";
import { EvaluationBoard } from "./EvaluationBoard";
import { Notes, Reading } from "./Notes";
import { useLeaderboards } from "./queries";
import { SearchInput } from "../../components/SearchInput";
import { SpeedrunBoard } from "./SpeedrunBoard";

const BOARDS_AT_ONCE = 10;

/** Leaderboards of the evaluations and speedruns below the prefix. */
export const Leaderboards = ({ change, view }: { readonly change: ChangeView; readonly view: View }) => {
  const boards = useLeaderboards(view.prefix);
  const [shown, setShown] = useState(BOARDS_AT_ONCE);

  if (boards.error !== null) {
    return <Problem error={boards.error} />;
  }
  if (boards.data === undefined) {
    return <Loading />;
  }
  const { evaluations, notes, prefix, reading_s: seconds, speedruns } = boards.data;
  const word = view.task.toLowerCase();
  const found = evaluations.boards.filter((board) => board.title.toLowerCase().includes(word));
  const all = [...notes, ...evaluations.problems, ...speedruns.problems];
  if (evaluations.boards.length + speedruns.boards.length === 0) {
    return seconds !== null ? (
      <Reading prefix={prefix} seconds={seconds} />
    ) : (
      <VStack align="stretch" gap={3}>
        <Notes notes={all} />
        <Empty title={`There is no evaluation and no speedrun below ${prefix}`}>
          {`Steps such as evaluate_lm_evaluation_harness(…) and speedrun(…) write results that appear here.`}
        </Empty>
      </VStack>
    );
  }
  return (
    <VStack align="stretch" gap={6}>
      <Notes notes={all} />
      {speedruns.boards.map((board) => (
        <SpeedrunBoard board={board} key={board.metric} />
      ))}
      {evaluations.boards.length === 0 ? null : (
        <>
          <HStack align="end" flexWrap="wrap" gap={4}>
            <Field.Root maxW="280px">
              <Field.Label>Task or metric</Field.Label>
              <SearchInput onChange={(task) => change({ task })} value={view.task} />
            </Field.Root>
            <Text aria-live="polite" color="fg.muted" fontSize="sm" flex="1" minW="280px">
              {`${pluralize(found.length, "board")}. Only scores of one board are comparable, and nothing is averaged over tasks. A score for fewer than 90 % of the documents is incomplete and has no number. The step leaderboard(…) says which scores are better: it compares them by document.`}
            </Text>
          </HStack>
          {found.slice(0, shown).map((board) => (
            <EvaluationBoard board={board} key={`${board.title} ${board.metric}`} />
          ))}
          {found.length > shown ? (
            <Button alignSelf="start" onClick={() => setShown(shown + BOARDS_AT_ONCE)} size="sm" variant="outline">
              {`Show more of ${pluralize(found.length, "board")}`}
            </Button>
          ) : null}
        </>
      )}
    </VStack>
  );
};
