import { Box } from "@chakra-ui/react";

import type { Schemas } from "../../api/client";
import { placeOf } from "./interval";
import type { Axis } from "./interval";

const BAR = { high: 10, low: 6 } as const;

/** A score with its interval as a bar; the text beside it says the same. */
export const IntervalBar = ({ axis, score }: { readonly axis: Axis; readonly score: Schemas["BoardScore"] }) => {
  if (score.value === null) {
    return null;
  }
  const at = placeOf(score.value, axis);
  const low = placeOf(score.low ?? score.value, axis);
  const high = placeOf(score.high ?? score.value, axis);

  return (
    <Box aria-hidden="true" asChild color="fg.info" display="block" h="16px" minW="90px" overflow="visible" w="full">
      <svg preserveAspectRatio="none" viewBox="0 0 100 16">
        <line opacity={0.25} stroke="currentColor" vectorEffect="non-scaling-stroke" x1={0} x2={100} y1={8} y2={8} />
        <rect fill="currentColor" height={BAR.high - BAR.low} opacity={0.55} width={Math.max(0, high - low)} x={low} y={BAR.low} />
        <line stroke="currentColor" strokeWidth={3} vectorEffect="non-scaling-stroke" x1={at} x2={at} y1={2} y2={14} />
      </svg>
    </Box>
  );
};
