import { EmptyState, VStack } from "@chakra-ui/react";
import type { ReactNode } from "react";

type Props = { readonly children?: ReactNode; readonly title: string };

/** What a page shows where there is nothing to show, and why. */
export const Empty = ({ children, title }: Props) => (
  <EmptyState.Root>
    <EmptyState.Content>
      <VStack textAlign="center">
        <EmptyState.Title>{title}</EmptyState.Title>
        <EmptyState.Description>{children}</EmptyState.Description>
      </VStack>
    </EmptyState.Content>
  </EmptyState.Root>
);
