import { Badge, Box, HStack, Text } from "@chakra-ui/react";
import { Handle, Position, useStore } from "@xyflow/react";
import type { Node, NodeProps } from "@xyflow/react";
import { createContext, memo, useContext } from "react";

import { DecisionBadge, PALETTES } from "../../components/decisions";
import { Sentence, plainSentence } from "../../components/Sentence";
import { NODE } from "./layout";
import { marksOf } from "./model";
import type { Step } from "./model";

export type StepNodeType = Node<{ readonly step: Step }, "step">;

type Selection = { readonly select: (taskId: string) => void; readonly selected: string };

export const SelectionContext = createContext<Selection>({ select: () => undefined, selected: "" });

/** Below this zoom a node's text cannot be read, so it is not drawn. */
const MIN_TEXT_ZOOM = 0.35;

const HIDDEN = { opacity: 0, pointerEvents: "none" } as const;

const Content = ({ step }: { readonly step: Step }) => (
  <>
    <HStack gap={1} justifyContent="space-between" w="full">
      <Text fontSize="sm" fontWeight="semibold" truncate>
        {step.name}
      </Text>
      <DecisionBadge decision={step.decision} size="xs" />
    </HStack>
    <HStack color="fg.muted" fontSize="xs" gap={1}>
      <Text fontFamily="mono">{step.hash}</Text>
      {marksOf(step).map((mark) => (
        <Badge colorPalette="orange" key={mark} size="xs">
          {mark}
        </Badge>
      ))}
    </HStack>
    <Text fontSize="xs" truncate w="full">
      <Sentence text={step.reason} />
    </Text>
  </>
);

/** A step in the graph: a button that opens its panel. */
export const StepNode = memo(({ data: { step } }: NodeProps<StepNodeType>) => {
  const isReadable = useStore((state) => state.transform[2] >= MIN_TEXT_ZOOM);
  const { select, selected } = useContext(SelectionContext);
  const isSelected = selected === step.task_id;

  return (
    <>
      <Handle isConnectable={false} position={Position.Left} style={HIDDEN} type="target" />
      <Box
        aria-label={isReadable ? undefined : `${step.name}, version ${step.hash}: ${step.decision}, ${plainSentence(step.reason)}`}
        aria-pressed={isSelected}
        as="button"
        bg={isReadable ? "colorPalette.subtle" : "colorPalette.solid"}
        borderColor={isSelected ? "colorPalette.fg" : "colorPalette.emphasized"}
        borderRadius="md"
        borderWidth={isSelected ? 3 : 1}
        color="fg"
        colorPalette={PALETTES[step.decision]}
        cursor="pointer"
        data-task={step.task_id}
        display="block"
        h={`${NODE.height}px`}
        onClick={() => select(step.task_id)}
        overflow="hidden"
        px={2}
        py={1}
        textAlign="start"
        title={`${step.name}: ${plainSentence(step.reason)}`}
        w={`${NODE.width}px`}
      >
        {isReadable ? <Content step={step} /> : undefined}
      </Box>
      <Handle isConnectable={false} position={Position.Right} style={HIDDEN} type="source" />
    </>
  );
});
StepNode.displayName = "StepNode";
