import { Alert } from "@chakra-ui/react";

/** A sentence of the server above a content, if there is one. */
export const Note = ({ text }: { readonly text: string | null | undefined }) =>
  text ? (
    <Alert.Root role="note" size="sm" status="info">
      <Alert.Indicator />
      <Alert.Description overflowWrap="anywhere">{text}</Alert.Description>
    </Alert.Root>
  ) : null;
