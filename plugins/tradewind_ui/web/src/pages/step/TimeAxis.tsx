import { Box, chakra } from "@chakra-ui/react";

import { formatDuration, formatTime } from "../../components/format";
import { percent, ticksOf } from "./timeAxis";
import type { Attempt, Span } from "./timeAxis";

/** Color of each kind of interval. */
export const PHASES: Record<string, string> = {
  committing: "purple.solid",
  reserved: "yellow.solid",
  running: "green.solid",
  starting: "cyan.solid",
  waiting: "gray.emphasized",
};

/** Sign and color of each kind of event: the sign says it without the color. */
export const EVENTS: Record<string, readonly [string, string]> = {
  committed: ["✓", "green.fg"],
  failed: ["✕", "red.fg"],
  lost: ["?", "orange.fg"],
  preempted: ["▼", "orange.fg"],
  restarted: ["↻", "blue.fg"],
  saved: ["●", "teal.fg"],
  scaled: ["▲", "blue.fg"],
  stopped: ["■", "gray.fg"],
};

const BAR_TOP = 22;
const BAR_HEIGHT = 20;
const HEIGHT = 62;

type Props = { readonly attempt: Attempt; readonly axis: Span; readonly now: number };

const Ticks = ({ axis }: { readonly axis: Span }) =>
  ticksOf(axis).map(({ at, label }, index) => (
    <g key={at}>
      <chakra.line
        stroke="border"
        x1={`${percent(at, axis)}%`}
        x2={`${percent(at, axis)}%`}
        y1={BAR_TOP}
        y2={BAR_TOP + BAR_HEIGHT + 4}
      />
      <chakra.text
        fill="fg.muted"
        fontSize="11px"
        textAnchor={index === 0 ? "start" : percent(at, axis) > 96 ? "end" : "middle"}
        x={`${percent(at, axis)}%`}
        y={HEIGHT - 4}
      >
        {label}
      </chakra.text>
    </g>
  ));

/** What an attempt did, as intervals and signs on an axis of time. */
export const TimeAxis = ({ attempt, axis, now }: Props) => {
  const label = attempt.phases
    .map(({ ended_at, kind, started_at }) => `${kind} ${formatDuration((ended_at ?? now) - started_at)}`)
    .slice(0, 20)
    .join(", ");

  return (
    <Box aria-label={`Attempt ${attempt.number}: ${label || "no intervals are known"}`} px={2} role="img">
      <chakra.svg height={`${HEIGHT}px`} overflow="visible" width="100%">
        <chakra.rect fill="bg.muted" height={BAR_HEIGHT} rx={3} width="100%" x={0} y={BAR_TOP} />
        {attempt.phases.map(({ ended_at, kind, slices, started_at }) => {
          const end = ended_at ?? now;
          const names = slices.length === 0 ? "" : ` on ${slices.join(", ")}`;

          return (
            <chakra.rect
              fill={PHASES[kind] ?? "gray.solid"}
              height={BAR_HEIGHT}
              key={`${kind}/${started_at}`}
              width={`${Math.max(0.15, percent(end, axis) - percent(started_at, axis))}%`}
              x={`${percent(started_at, axis)}%`}
              y={BAR_TOP}
            >
              <title>{`${kind} ${formatDuration(end - started_at)}${names}, from ${formatTime(started_at)}`}</title>
            </chakra.rect>
          );
        })}
        <Ticks axis={axis} />
        {attempt.events.map(({ at, kind, reason, step }, index) => {
          const [sign, color] = EVENTS[kind] ?? ["•", "fg"];
          const parts = [kind, step === null || step === undefined ? "" : `at step ${step}`, reason ?? ""];

          return (
            <chakra.text
              cursor="default"
              fill={color}
              fontSize={kind === "saved" ? "9px" : "13px"}
              fontWeight="bold"
              key={`${kind}/${at}/${index}`}
              textAnchor="middle"
              x={`${percent(at, axis)}%`}
              y={BAR_TOP - 6}
            >
              <title>{parts.filter((part) => part !== "").join(" ")}</title>
              {sign}
            </chakra.text>
          );
        })}
      </chakra.svg>
    </Box>
  );
};
