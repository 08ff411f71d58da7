import { Box } from "@chakra-ui/react";
import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import styles from "uplot/dist/uPlot.min.css?inline";

import { usePlotColors } from "./colors";
import type { PlotColors } from "./colors";
import { aligned } from "./curves";
import type { Line } from "./curves";

const STYLE_ID = "tradewind-uplot";
const HEIGHT = 260;
/** A curve of so few points has a mark at each: a single one would be no line at all. */
const MARKED_POINTS = 30;

const numbersOf = (data: uPlot.AlignedData, index: number) =>
  (data[index] ?? []).filter((value): value is number => typeof value === "number");

/** Airflow loads one module and no style sheet, so that the style of the plot comes with its script. */
const addStyles = () => {
  if (document.getElementById(STYLE_ID) === null) {
    const style = document.createElement("style");
    style.id = STYLE_ID;
    style.textContent = styles;
    document.head.append(style);
  }
};

const optionsOf = (lines: readonly Line[], isLog: boolean, colors: PlotColors, width: number): uPlot.Options => {
  const axis = { grid: { stroke: colors.grid, width: 1 }, stroke: colors.axis, ticks: { stroke: colors.grid } };

  return {
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en-US")) }, { ...axis, size: 60 }],
    cursor: { drag: { x: true, y: false } },
    height: HEIGHT,
    scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
    series: [
      { label: "step", value: (_, step) => step?.toLocaleString("en-US") ?? "–" },
      ...lines.map(({ isMuted, label }) => ({
        dash: isMuted ? [5, 4] : undefined,
        label,
        points: { show: (plot: uPlot, index: number) => numbersOf(plot.data, index).length <= MARKED_POINTS, size: 5 },
        spanGaps: true,
        stroke: colors.lines[isMuted ? 1 : 0],
        // Away from the mouse, the newest.
        value: (plot: uPlot, value: number | null, index: number, at: number | null) =>
          (at === null ? numbersOf(plot.data, index).at(-1) : value)?.toPrecision(5) ?? "–",
        width: isMuted ? 1 : 1.5,
      })),
    ],
    width,
  };
};

type Props = { readonly isLog: boolean; readonly lines: readonly Line[]; readonly title: string };

/** One metric by step: this version's line and, dashed, that of the version beside it. Drag to look closer. */
const Plot = ({ isLog, lines, title }: Props) => {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [width, setWidth] = useState(0);
  const colors = usePlotColors();
  const data = useMemo(() => aligned(lines) as uPlot.AlignedData, [lines]);
  // A logarithm needs positive values: uPlot draws nothing with others.
  const canBeLog = lines.every((line) => line.values.every((value) => value === null || value > 0));
  const shape = JSON.stringify([lines.map(({ isMuted, label }) => [isMuted, label]), isLog && canBeLog]);

  useEffect(() => {
    const element = holder.current;
    if (element === null) {
      return undefined;
    }
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = holder.current;
    if (element === null || width === 0) {
      return undefined;
    }
    addStyles();
    const made = new uPlot(optionsOf(lines, isLog && canBeLog, colors, width), data, element);
    plot.current = made;
    return () => {
      plot.current = undefined;
      made.destroy();
    };
    // New points do not need a new plot: the next effect draws them.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [shape, colors, width]);

  useEffect(() => {
    const { current } = plot;
    const isZoomed = current !== undefined && current.scales.x?.min !== current.data[0][0];
    current?.setData(data, !isZoomed);
  }, [data]);

  const last = lines[0]?.values.at(-1);
  const summary = typeof last === "number" ? `, last value ${last.toPrecision(5)}` : "";

  return (
    <Box
      aria-label={`Curve of ${title}${summary}`}
      color="fg"
      css={{ "& .u-legend": { fontSize: "12px", textAlign: "start" } }}
      minH={`${HEIGHT}px`}
      minW={0}
      overflow="hidden"
      ref={holder}
      role="img"
    />
  );
};

export default Plot;
