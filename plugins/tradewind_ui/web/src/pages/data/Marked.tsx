import { Mark } from "@chakra-ui/react";

import { splitByTerms } from "./highlight";

/** A text in which the terms are marked. */
export const Marked = ({ terms, text }: { readonly terms: readonly string[]; readonly text: string }) => (
  <>
    {splitByTerms(text, terms).map((piece, at) =>
      piece.isMatch ? (
        <Mark key={at} variant="subtle">
          {piece.text}
        </Mark>
      ) : (
        piece.text
      ),
    )}
  </>
);
