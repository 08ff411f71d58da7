import { Badge, Button, Flex, HStack, Stack, Text } from "@chakra-ui/react";

import { formatBytes, formatSince, formatTime, pluralize } from "../../components/format";
import { MakerLink, makerText, OutputTag } from "./MakerLink";
import { Note } from "./Note";
import { PathLink } from "./PathLink";
import { fileUrl } from "./queries";
import type { Description } from "./views";

const Changed = ({ modified }: { readonly modified: string }) => {
  const seconds = Date.parse(modified) / 1000;
  return <Text as="span" title={formatTime(seconds)}>changed {formatSince(seconds)}</Text>;
};

const Maker = ({ description: { made_by: made, output, path } }: { readonly description: Description }) =>
  made ? (
    <HStack flexWrap="wrap" fontSize="sm" gap={2}>
      <OutputTag made={made} />
      {makerText(made) === "" ? null : (
        <span>
          made by <MakerLink made={made} />
        </span>
      )}
      {output && output !== path ? (
        <span>
          in <PathLink focus="first" path={output}>{made.version ?? output}</PathLink>
        </span>
      ) : null}
    </HStack>
  ) : null;

/** What a path is, and who made it. */
export const About = ({ description }: { readonly description: Description }) => {
  const { facts = [], kind, modified, notes = [], path, related = [], rows, size, title } = description;

  return (
    <Stack gap={2}>
      <Flex align="center" fontSize="sm" gap={3} wrap="wrap">
        <Badge variant="outline">{title}</Badge>
        {typeof size === "number" ? <span>{formatBytes(size)}</span> : null}
        {typeof rows === "number" ? <span>{pluralize(rows, "row")}</span> : null}
        {modified ? <Changed modified={modified} /> : null}
        {kind === "file" ? (
          <Button asChild size="xs" variant="outline">
            <a download href={fileUrl("download", path)}>
              Download
            </a>
          </Button>
        ) : null}
        {facts.map(({ name, value }) => (
          <Text as="span" color="fg.muted" key={name} overflowWrap="anywhere">
            {name}: {value}
          </Text>
        ))}
      </Flex>
      <Maker description={description} />
      {related.length === 0 ? null : (
        <HStack flexWrap="wrap" fontSize="sm">
          <Text color="fg.muted">Belongs to it:</Text>
          {related.map((entry) => (
            <PathLink focus="first" key={entry.path} path={entry.path}>
              {entry.name}
            </PathLink>
          ))}
        </HStack>
      )}
      {notes.map((note) => (
        <Note key={note} text={note} />
      ))}
      <Note text={description.made_by?.problem} />
    </Stack>
  );
};
