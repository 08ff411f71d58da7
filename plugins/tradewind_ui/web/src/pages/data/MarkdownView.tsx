import { Box, Link, Stack, Text } from "@chakra-ui/react";
import type { Element, Root } from "hast";
import { useMemo } from "react";
import Markdown from "react-markdown";
import type { Components } from "react-markdown";
import remarkGfm from "remark-gfm";

import { Loading } from "../../components/Frame";
import { usePane } from "./context";
import { splitByTerms } from "./highlight";
import { Note } from "./Note";
import { resolvePath } from "./paths";
import { PathLink } from "./PathLink";
import { fileUrl, useText } from "./queries";
import { Refusal } from "./Refusal";

const MAX_BYTES = 1 << 17;
/** Signs that a part may have, and levels of quotes and lists: the parser takes quadratic time for them. */
const MAX_SIGNS = 5000;
const MAX_LEVELS = 100;
const STYLE = {
  "& blockquote": { borderInlineStartWidth: "3px", color: "fg.muted", ps: 3 },
  "& code": { bg: "bg.muted", fontFamily: "mono", fontSize: "0.9em", px: 1, rounded: "sm" },
  "& h1": { fontSize: "2xl", fontWeight: "bold", mt: 2 },
  "& h2": { fontSize: "xl", fontWeight: "bold", mt: 4 },
  "& h3, & h4, & h5, & h6": { fontWeight: "bold", mt: 3 },
  "& img": { maxW: "full" },
  "& ol": { listStyleType: "decimal", ps: 6 },
  "& p, & ul, & ol, & pre, & table, & blockquote": { my: 2 },
  "& pre": { bg: "bg.muted", overflow: "auto", p: 3, rounded: "md" },
  "& pre code": { bg: "transparent", p: 0 },
  "& table": { display: "block", overflow: "auto" },
  "& th, & td": { borderWidth: "1px", px: 2, py: 1 },
  "& ul": { listStyleType: "disc", ps: 6 },
};

type Parent = Element | Root;

/** Put the matches of the terms into `mark` elements. */
const markMatches = (parent: Parent, terms: readonly string[]): void => {
  parent.children = parent.children.flatMap((child): Parent["children"] => {
    if (child.type === "element") {
      markMatches(child, terms);
    }
    return child.type !== "text"
      ? [child]
      : splitByTerms(child.value, terms).map(({ isMatch, text }) => {
          const value = { type: "text" as const, value: text };
          return isMatch ? { children: [value], properties: {}, tagName: "mark", type: "element" as const } : value;
        });
  }) as Element["children"];
};

/** Links stay in the store or open elsewhere; pictures come from the store only, so that no other server sees the viewer. */
const componentsFor = (document: string): Components => ({
  a: ({ children, href = "" }) => {
    const path = resolvePath(document, href);
    return path === undefined ? (
      <Link color="fg.info" href={href} rel="noopener noreferrer nofollow" target="_blank">
        {children}
      </Link>
    ) : (
      <PathLink path={path}>{children}</PathLink>
    );
  },
  img: ({ alt = "", src }) => {
    const path = typeof src === "string" ? resolvePath(document, src) : undefined;
    return path === undefined ? (
      <Link color="fg.info" href={typeof src === "string" ? src : undefined} rel="noopener noreferrer nofollow" target="_blank">
        {alt === "" ? "picture" : alt}
      </Link>
    ) : (
      <img alt={alt} src={fileUrl("image", path)} />
    );
  },
});

/** Whether the parser would stop the browser's tab for seconds. */
export const isHeavy = (text: string): boolean =>
  new RegExp(`^[ \\t>*+-]{${2 * MAX_LEVELS},}`, "mu").test(text) ||
  text.split(/\n[ \t]*\n/u).some((part) => (part.match(/[!*<>[\\\]_`~]/gu)?.length ?? 0) > MAX_SIGNS);

/** A markdown document. Its HTML, if any, is left out. */
export const MarkdownView = () => {
  const { pane, terms } = usePane();
  const found = useText(pane.path, 0, MAX_BYTES);
  const components = useMemo(() => componentsFor(pane.path), [pane.path]);
  const marking = useMemo(() => [() => (tree: Root) => markMatches(tree, terms)], [terms]);

  if (found.data === undefined) {
    return found.error ? <Refusal error={found.error} retry={found.refetch} /> : <Loading />;
  }
  return (
    <Stack>
      <Note text={found.data.note} />
      <Note text={found.data.next ? "This is the first 128 KiB of the document. Text shows all of it, in pages." : undefined} />
      <Box as="article" css={STYLE} maxW="60rem" overflowWrap="anywhere">
        {isHeavy(found.data.text) ? (
          <Text as="pre">{found.data.text}</Text>
        ) : (
          <Markdown components={components} rehypePlugins={marking} remarkPlugins={[remarkGfm]} skipHtml>
            {found.data.text}
          </Markdown>
        )}
      </Box>
    </Stack>
  );
};

export default MarkdownView;
