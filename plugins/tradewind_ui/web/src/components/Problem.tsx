import { Alert } from "@chakra-ui/react";

import { ApiError } from "../api/client";

const TITLES: Record<number, string> = {
  401: "You are not logged in",
  403: "You may not see this",
  404: "There is nothing here",
  503: "The store does not answer",
};

/** Says what went wrong, in the server's words. */
export const Problem = ({ error }: { readonly error: Error }) => {
  const status = error instanceof ApiError ? error.status : undefined;

  return (
    <Alert.Root status={status === 404 ? "info" : "error"}>
      <Alert.Indicator />
      <Alert.Content>
        <Alert.Title>{(status === undefined ? undefined : TITLES[status]) ?? "This cannot be shown"}</Alert.Title>
        <Alert.Description whiteSpace="pre-wrap">{error.message}</Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );
};
