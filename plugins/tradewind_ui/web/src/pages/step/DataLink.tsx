import { Link } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

type Props = { readonly children?: ReactNode; readonly path: string };

/** A path as a link to its place in the page Data. */
export const DataLink = ({ children, path }: Props) => (
  <Link asChild color="fg.info" overflowWrap="anywhere" wordBreak="break-word">
    <RouterLink to={`/plugin/tradewind_data?path=${encodeURIComponent(path)}`}>{children ?? path}</RouterLink>
  </Link>
);
