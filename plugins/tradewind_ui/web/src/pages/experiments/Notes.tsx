import { Alert, HStack, Spinner, Text } from "@chakra-ui/react";

import { formatDuration } from "../../components/format";

/** Sentences that say what is left out. */
export const Notes = ({ notes }: { readonly notes: readonly string[] }) =>
  notes.length === 0 ? null : (
    <Alert.Root status="warning">
      <Alert.Indicator />
      <Alert.Content>
        {notes.map((note) => (
          <Alert.Description key={note} overflowWrap="anywhere">
            {note}
          </Alert.Description>
        ))}
      </Alert.Content>
    </Alert.Root>
  );

/** Stands where a list appears once the server has read it. */
export const Reading = ({ prefix, seconds }: { readonly prefix: string; readonly seconds: number }) => (
  <HStack gap={3} p={6} role="status">
    <Spinner aria-hidden="true" size="sm" />
    <Text overflowWrap="anywhere">
      {`Reading the records below ${prefix} for ${formatDuration(seconds)}. A folder closer to the outputs is read faster.`}
    </Text>
  </HStack>
);
