import { Link } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { Schemas } from "../api/client";
import { formatCount } from "./format";
import { dataLink } from "./links";

type Props = { readonly children?: ReactNode; readonly filter?: string; readonly path: string };

/** A path as a link to its place in the page Data. */
export const DataLink = ({ children, filter, path }: Props) => (
  <Link asChild color="fg.info" overflowWrap="anywhere" wordBreak="break-word">
    <RouterLink to={dataLink(path, filter)}>{children ?? path}</RouterLink>
  </Link>
);

/** A link to the answers behind a score: the wrong ones if answers are right or wrong. */
export const SamplesLink = ({ samples }: { readonly samples: Schemas["SampleRows"] | null }) =>
  samples === null ? undefined : (
    <DataLink filter={samples.filter} path={samples.path}>
      {samples.wrong === null ? "answers" : `${formatCount(samples.wrong)} wrong`}
    </DataLink>
  );
