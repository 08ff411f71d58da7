import { Box, Heading, HStack } from "@chakra-ui/react";
import type { ReactNode } from "react";

type Props = { readonly aside?: ReactNode; readonly children: ReactNode; readonly title: string };

/** A part of the page with its heading. */
export const Section = ({ aside, children, title }: Props) => (
  <Box aria-label={title} as="section" borderTopWidth="1px" pt={4}>
    <HStack flexWrap="wrap" gap={3} justify="space-between" mb={3}>
      <Heading as="h2" size="md">
        {title}
      </Heading>
      {aside}
    </HStack>
    {children}
  </Box>
);
