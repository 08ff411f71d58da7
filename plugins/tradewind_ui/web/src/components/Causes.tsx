import { Badge, Code, HStack, Link, List, Text } from "@chakra-ui/react";

import { plainSentence } from "./Sentence";

/** A root cause of a difference, as the package's `plans.differences.Change`. */
export type Cause = {
  readonly step: string;
  readonly way?: ReadonlyArray<string>;
  readonly what: string;
  readonly where: string;
};

type Props = {
  readonly changes: ReadonlyArray<Cause>;
  /** Called with the name of the step that holds the difference; without it, the name is plain text. */
  readonly onStep?: (name: string) => void;
};

/** The root causes of a difference: the step's own first, then those of inputs with the way that leads to them. */
export const Causes = ({ changes, onStep }: Props) =>
  changes.length === 0 ? (
    <Text color="fg.muted">No field differs, only the form of the records.</Text>
  ) : (
    <List.Root aria-label="What changed" gap={2} variant="plain">
      {changes.map(({ step, way = [], what, where }) => (
        <List.Item display="block" key={`${step}/${where}/${what}`}>
          {way.length === 0 ? undefined : (
            <HStack flexWrap="wrap" fontSize="sm" gap={1}>
              <Badge colorPalette="blue" size="xs">
                input
              </Badge>
              {way.map((name, index) => (
                <Text as="span" key={`${index}/${name}`} overflowWrap="anywhere">
                  {index === 0 ? "" : "← "}
                  {index === way.length - 1 && onStep !== undefined ? (
                    <Link as="button" color="fg.info" onClick={() => onStep(step)}>
                      {name}
                    </Link>
                  ) : (
                    name
                  )}
                </Text>
              ))}
            </HStack>
          )}
          <Code fontSize="xs" overflowWrap="anywhere" whiteSpace="pre-wrap">
            {plainSentence(what)}
          </Code>
        </List.Item>
      ))}
    </List.Root>
  );
