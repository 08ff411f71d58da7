import { Alert, Button, Code, Text } from "@chakra-ui/react";

import { ApiError } from "../../api/client";

const TITLES: Record<number, string> = {
  401: "You are not logged in",
  403: "You may not see this",
  404: "This is not there, or no longer",
  409: "The file has changed",
  413: "This is too large to show",
  415: "This file is of another kind",
  422: "This cannot be read",
  429: "The readers are busy",
  503: "The store does not answer",
};

const ADVICE: Record<number, string> = {
  404: "A garbage collection or a user may have removed it since the link was made. The folders above it may still be there.",
  409: "A step that runs again writes its files anew. Begin anew at its start.",
  413: "Copy it from the store with its own tool.",
  429: "Each API server reads a few files at once. Try again in a moment.",
  503: "Other pages are not affected. Try again in a moment.",
};

const PASSING: readonly number[] = [429, 503];

const Permission = ({ message }: { readonly message: string }) =>
  message.includes("Tradewind Data") ? (
    <Text>
      An administrator gives it to a role by <Code>airflow roles add-perms ROLE -r &quot;Tradewind Data&quot; -a can_read</Code>{" "}
      (FAB), or by a policy of the auth manager in use.
    </Text>
  ) : (
    <Text>Pages show only paths below the allowed roots of this deployment.</Text>
  );

/** Says what went wrong, in the server's words, and what to do about it. */
export const Refusal = ({ error, retry }: { readonly error: Error; readonly retry?: () => unknown }) => {
  const status = error instanceof ApiError ? error.status : 0;

  return (
    <Alert.Root role="alert" status={status === 404 ? "info" : PASSING.includes(status) ? "warning" : "error"}>
      <Alert.Indicator />
      <Alert.Content gap={2}>
        <Alert.Title>{TITLES[status] ?? "This cannot be shown"}</Alert.Title>
        <Alert.Description overflowWrap="anywhere" whiteSpace="pre-wrap">
          <Text>{error.message}</Text>
          {status === 403 ? <Permission message={error.message} /> : <Text>{ADVICE[status]}</Text>}
        </Alert.Description>
        {retry !== undefined && (PASSING.includes(status) || status === 0 || status >= 500) ? (
          <Button alignSelf="start" onClick={() => void retry()} size="sm" variant="outline">
            Try again
          </Button>
        ) : null}
      </Alert.Content>
    </Alert.Root>
  );
};
