import { Link as ChakraLink } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { usePane } from "./context";

type Props = {
  readonly children: ReactNode;
  readonly focus?: string;
  /** Enter on the row does the same, so the Tab key leaves the link out. */
  readonly isInRow?: boolean;
  readonly path: string;
};

/** A link to a path in the same pane, which can also be opened in another tab. */
export const PathLink = ({ children, focus, isInRow = false, path }: Props) => {
  const { hrefOf, index } = usePane();

  return (
    <ChakraLink asChild color="fg.info" overflowWrap="anywhere">
      <Link state={{ focus, pane: index }} tabIndex={isInRow ? -1 : undefined} to={hrefOf(path)}>
        {children}
      </Link>
    </ChakraLink>
  );
};
