import { Box, Link, List, SimpleGrid, Stack, Text } from "@chakra-ui/react";

import { ConfigTree } from "../../components/ConfigTree";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount } from "../../components/format";
import { DataLink } from "../../components/DataLink";
import { useConfig } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";

type Props = { readonly ids: Ids; readonly version: string };

/** The inputs and the config of the step, as the record beside its output has them. */
export const Config = ({ ids, version }: Props) => {
  const { data, error } = useConfig(ids, version);
  if (data === undefined || data.config.problem) {
    return (
      <Section title="Config">
        {error === null ? undefined : <Problem error={error} />}
        {data === undefined && error === null ? <Loading /> : undefined}
        <Text color="fg.muted">{data?.config.problem}</Text>
      </Section>
    );
  }
  const { config, trackers } = data;
  const { entries, function: fn, inputs, left_out } = config;

  return (
    <SimpleGrid columns={{ base: 1, lg: 2 }} gap={6}>
      <Box minW={0}>
        <Section title="Config">
          {entries.length === 0 ? <Text color="fg.muted">It has no values.</Text> : undefined}
          <Box maxH="600px" overflow="auto">
            <ConfigTree entries={entries} key={version} label="Config" />
          </Box>
          {left_out > 0 ? (
            <Text color="fg.muted">At least {formatCount(left_out)} more values are not shown.</Text>
          ) : undefined}
        </Section>
      </Box>
      <Box minW={0}>
        <Section title="Inputs">
          <Stack gap={3}>
            {inputs.length === 0 ? (
              <Text color="fg.muted">It reads no other step.</Text>
            ) : (
              <List.Root gap={1} ps={5}>
                {inputs.map(({ output_path, version: input, waits }) => (
                  <List.Item key={`${input}/${output_path}`} overflowWrap="anywhere">
                    {output_path ? <DataLink path={output_path}>{input}</DataLink> : input}
                    {waits ? "" : " (not waited for)"}
                  </List.Item>
                ))}
              </List.Root>
            )}
            {trackers.map(({ name, note, path, url }) => (
              <Text fontSize="sm" key={name} overflowWrap="anywhere">
                {path ? <DataLink path={path}>{name}</DataLink> : undefined}
                {url ? (
                  <Link color="fg.info" href={url} rel="noreferrer" target="_blank">
                    {name} ↗
                  </Link>
                ) : undefined}
                {path || url ? undefined : name} <Text as="span" color="fg.muted">{note}</Text>
              </Text>
            ))}
            {fn ? (
              <Text color="fg.muted" fontSize="sm" overflowWrap="anywhere">
                Function {fn}
              </Text>
            ) : undefined}
          </Stack>
        </Section>
      </Box>
    </SimpleGrid>
  );
};
