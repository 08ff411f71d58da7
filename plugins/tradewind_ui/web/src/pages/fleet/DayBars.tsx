import { Box, HStack, Text } from "@chakra-ui/react";

type Props = {
  /** Say what a bar shows, as `3 preempted`. */
  readonly describe: (value: number) => string;
  readonly days: readonly string[];
  readonly label: string;
  /** What a bar of full height stands for. */
  readonly most: number;
  readonly palette: string;
  readonly summary: string;
  /** By day; a day without a value has no bar. */
  readonly values: ReadonlyMap<string, number>;
};

const BAR = 12;
const GAP = 3;
const HEIGHT = 36;

/** A bar for each day. */
export const DayBars = ({ days, describe, label, most, palette, summary, values }: Props) => {
  const shown = days.filter((day) => values.has(day)).map((day) => `${day}: ${describe(values.get(day) ?? 0)}`);
  const words = shown.length === 0 ? "nothing" : shown.join("; ");

  return (
    <HStack align="end" gap={4}>
      <Text fontSize="sm" minW="8rem" overflowWrap="anywhere" w="8rem">
        {label}
      </Text>
      <Box color={`${palette}.solid`}>
        <svg aria-label={`${label}: ${words}`} height={HEIGHT + 1} role="img" width={days.length * (BAR + GAP)}>
          {days.map((day, at) => {
            const value = values.get(day);
            const height = value === undefined ? 0 : Math.max(2, (value / Math.max(most, 1e-9)) * HEIGHT);
            return (
              <g key={day}>
                <title>{value === undefined ? `${day}: nothing` : `${day}: ${describe(value)}`}</title>
                <rect fill="transparent" height={HEIGHT} width={BAR} x={at * (BAR + GAP)} y={0} />
                <rect fill="currentColor" height={height} rx={1} width={BAR} x={at * (BAR + GAP)} y={HEIGHT - height} />
                <rect fill="currentColor" height={1} opacity={0.35} width={BAR} x={at * (BAR + GAP)} y={HEIGHT} />
              </g>
            );
          })}
        </svg>
      </Box>
      <Text color="fg.muted" fontSize="sm" whiteSpace="nowrap">
        {summary}
      </Text>
    </HStack>
  );
};
