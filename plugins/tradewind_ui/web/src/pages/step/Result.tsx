import { Box, Text } from "@chakra-ui/react";

import { ConfigTree } from "../../components/ConfigTree";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount } from "../../components/format";
import { useResult } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";

/** What the step's function returned; `version` changes with each attempt. */
export const Result = ({ ids, version }: { readonly ids: Ids; readonly version: string }) => {
  const { data, error } = useResult(ids, version);
  if (data === null) {
    return undefined;
  }

  return (
    <Section title="Result">
      {error === null ? undefined : <Problem error={error} />}
      {data === undefined && error === null ? <Loading /> : undefined}
      {data?.problem ? <Text color="fg.muted">{data.problem}</Text> : undefined}
      {data === undefined || data.entries.length === 0 ? undefined : (
        <Box borderWidth="1px" maxH="400px" overflow="auto" p={2} rounded="md">
          <ConfigTree entries={data.entries} key={version} label="Result" />
        </Box>
      )}
      {(data?.left_out ?? 0) > 0 ? (
        <Text color="fg.muted">At least {formatCount(data?.left_out ?? 0)} more values are not shown.</Text>
      ) : undefined}
    </Section>
  );
};
