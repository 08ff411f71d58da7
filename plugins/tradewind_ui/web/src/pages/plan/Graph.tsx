import { Box, Center, Text } from "@chakra-ui/react";
import { Background, Controls, MiniMap, Position, ReactFlow, ReactFlowProvider, useReactFlow } from "@xyflow/react";
import type { Edge as FlowEdge } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useEffect, useMemo } from "react";
import type { KeyboardEvent } from "react";

import { Loading } from "../../components/Frame";
import { useColorMode } from "../../components/colorMode";
import { PALETTES } from "../../components/decisions";
import { Problem } from "../../components/Problem";
import { pluralize } from "../../components/format";
import { NODE, edgesOf, useLayout } from "./layout";
import type { Layout } from "./layout";
import type { Step } from "./model";
import { nearest } from "./neighbours";
import { SelectionContext, StepNode } from "./StepNode";
import type { StepNodeType } from "./StepNode";

type Props = {
  readonly height: string;
  readonly label: string;
  readonly select: (taskId: string) => void;
  readonly selected: string;
  readonly steps: ReadonlyArray<Step>;
};

const NODE_TYPES = { step: StepNode };
/** Of more steps than this, the first view shows those that have work; a map shows the rest. */
const MAX_FITTED = 60;
const FIT = { duration: 0, maxZoom: 1, padding: 0.08 };

/** React Flow's own variables, set to Airflow's tokens. */
const THEME = {
  "--xy-attribution-background-color": "transparent",
  "--xy-background-color": "{colors.bg.subtle}",
  "--xy-background-pattern-color": "{colors.border.emphasized}",
  "--xy-controls-button-background-color": "{colors.bg}",
  "--xy-controls-button-background-color-hover": "{colors.bg.emphasized}",
  "--xy-controls-button-border-color": "{colors.border}",
  "--xy-controls-button-color": "{colors.fg}",
  "--xy-controls-button-color-hover": "{colors.fg}",
  "--xy-edge-stroke": "{colors.fg.subtle}",
  "--xy-minimap-background-color": "{colors.bg}",
  "--xy-minimap-mask-background-color": "{colors.bg.emphasized/60}",
} as const;

const colorOf = ({ data }: StepNodeType): string => `var(--chakra-colors-${PALETTES[data.step.decision]}-solid)`;

const nodesOf = ({ positions, steps }: Layout): Array<StepNodeType> =>
  steps.map((step) => ({
    ...NODE,
    data: { step },
    handles: [
      { height: 1, position: Position.Left, type: "target", width: 1, x: 0, y: NODE.height / 2 },
      { height: 1, position: Position.Right, type: "source", width: 1, x: NODE.width, y: NODE.height / 2 },
    ],
    id: step.task_id,
    measured: NODE,
    position: positions.get(step.task_id) ?? { x: 0, y: 0 },
    type: "step",
  }));

const flowEdges = (steps: ReadonlyArray<Step>): Array<FlowEdge> =>
  edgesOf(steps).map((edge) => ({ ...edge, focusable: false, selectable: false }));

/** Return the steps that the first view shows: those that have work, or all. */
export const shownFirst = (steps: ReadonlyArray<Step>): ReadonlyArray<Step> => {
  const work = steps.filter(({ decision }) => decision !== "REUSE" && decision !== "PRUNED");
  return steps.length <= MAX_FITTED || work.length === 0 ? steps : work;
};

const Flow = ({ height, label, layout, select, selected }: Omit<Props, "steps"> & { readonly layout: Layout }) => {
  const { fitView, setCenter } = useReactFlow();
  const colorMode = useColorMode();
  const nodes = useMemo(() => nodesOf(layout), [layout]);
  const edges = useMemo(() => flowEdges(layout.steps), [layout]);
  const selection = useMemo(() => ({ select, selected }), [select, selected]);

  useEffect(() => {
    const shown = layout.positions.get(selected);
    if (shown === undefined) {
      void fitView({ ...FIT, nodes: shownFirst(layout.steps).map(({ task_id: id }) => ({ id })) });
    } else {
      void setCenter(shown.x + NODE.width, shown.y + NODE.height / 2, { duration: 0, zoom: 0.8 });
    }
    // Only a new layout moves the view: a selection stays where the user looks.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [layout, fitView, setCenter]);

  const onKeyDown = (event: KeyboardEvent) => {
    const from = event.target instanceof HTMLElement ? event.target.dataset["task"] : undefined;
    const to = from === undefined ? undefined : nearest(layout.positions, from, event.key);
    const place = to === undefined ? undefined : layout.positions.get(to);
    if (to !== undefined && place !== undefined) {
      event.preventDefault();
      void setCenter(place.x + NODE.width / 2, place.y + NODE.height / 2, { duration: 0, zoom: 0.8 });
      // The node is drawn once it is in view.
      requestAnimationFrame(() =>
        requestAnimationFrame(() => document.querySelector<HTMLElement>(`[data-task="${CSS.escape(to)}"]`)?.focus()),
      );
    }
  };

  return (
    <SelectionContext.Provider value={selection}>
      <Box
        aria-label={`${label}: arrow keys go from step to step`}
        borderRadius="md"
        borderWidth={1}
        css={THEME}
        h={height}
        onKeyDown={onKeyDown}
        role="group"
      >
        <ReactFlow
          colorMode={colorMode}
          edges={edges}
          edgesFocusable={false}
          minZoom={0.02}
          nodes={nodes}
          nodesConnectable={false}
          nodesDraggable={false}
          nodesFocusable={false}
          nodeTypes={NODE_TYPES}
          onlyRenderVisibleElements
        >
          <Background />
          <Controls showInteractive={false} />
          {nodes.length > MAX_FITTED ? (
            <MiniMap
              ariaLabel="Map of the graph"
              nodeColor={colorOf}
              nodeStrokeColor={colorOf}
              nodeStrokeWidth={20}
              pannable
              zoomable
            />
          ) : undefined}
        </ReactFlow>
      </Box>
    </SelectionContext.Provider>
  );
};

/** The steps as a graph of what reads what, coloured by decision. */
const Graph = ({ steps, ...props }: Props) => {
  const { error, layout } = useLayout(steps);
  if (error !== undefined) {
    return <Problem error={new Error(`The graph cannot be laid out; the table shows all steps. ${error.message}`)} />;
  }
  if (layout === undefined) {
    return (
      <Center borderRadius="md" borderWidth={1} flexDirection="column" h={props.height}>
        <Loading />
        <Text color="fg.muted">Laying out {pluralize(steps.length, "step")}</Text>
      </Center>
    );
  }

  return (
    <ReactFlowProvider>
      <Flow {...props} layout={layout} />
    </ReactFlowProvider>
  );
};

export default Graph;
