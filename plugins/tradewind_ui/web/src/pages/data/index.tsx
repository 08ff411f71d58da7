import { Box, Flex, HStack, Stack } from "@chakra-ui/react";
import { useMemo } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router-dom";

import { Loading } from "../../components/Frame";
import { MAX_PANES, readAddress, withoutPane, withPane, withPaneBeside, withPath, writeAddress } from "./address";
import type { Address } from "./address";
import { PaneState } from "./context";
import type { PaneContext } from "./context";
import { DataPane } from "./DataPane";
import { useRoots } from "./queries";
import { Refusal } from "./Refusal";
import { SubmittedInput } from "./RowControls";

/** What a link inside of the page leaves for the page after: where the focus goes. */
type Left = { readonly focus?: string; readonly pane?: number } | null;

const hrefOf = (address: Address) => `?${writeAddress(address).toString()}`;

const Data = () => {
  const [params] = useSearchParams();
  const navigate = useNavigate();
  const left = useLocation().state as Left;
  const roots = useRoots();
  const address = useMemo(() => readAddress(params), [params]);
  const terms = useMemo(() => (address.find === "" ? [] : [address.find]), [address.find]);
  const paths = useMemo(() => roots.data?.map(({ path }) => path) ?? [], [roots.data]);

  const panes = useMemo(
    () =>
      address.panes.map((pane, index): PaneContext => {
        const go = (next: Address, state?: Left, replace = false) => void navigate(hrefOf(next), { replace, state });
        return {
          address,
          close: () => go(withoutPane(address, index)),
          hasRoom: address.panes.length < MAX_PANES,
          hrefOf: (path) => hrefOf(withPath(address, index, path)),
          index,
          open: (path, focus) => go(withPath(address, index, path), { focus, pane: index }),
          openBeside: (path) => go(withPaneBeside(address, path), { focus: "first", pane: address.panes.length }),
          pane,
          roots: paths,
          terms,
          // Typing in a filter does not fill the history.
          update: (change) => go(withPane(address, index, change), undefined, Object.keys(change).every((key) => ["filter", "row", "sort"].includes(key))),
          wantedFocus: left?.pane === index ? (left.focus ?? "first") : undefined,
        };
      }),
    [address, left, navigate, paths, terms],
  );

  if (roots.isPending) {
    return <Loading />;
  }
  if (roots.error) {
    return <Refusal error={roots.error} retry={roots.refetch} />;
  }
  return (
    <Box h="full" overflow="auto" p={4}>
      <Stack gap={4}>
        <HStack flexWrap="wrap" gap={2}>
          <SubmittedInput label="Go to a path" onSubmit={(path) => panes[0]?.open(path, "first")} value={address.panes[0]?.path ?? ""} width="min(36rem, 80vw)" />
          <SubmittedInput label="Highlight a text" onSubmit={(find) => void navigate(hrefOf({ ...address, find }))} value={address.find} width="14rem" />
        </HStack>
        {/* A column that wraps would be as wide as its longest line, and not as the window. */}
        <Flex direction={{ base: "column", lg: "row" }} gap={6} wrap={{ base: "nowrap", lg: "wrap" }}>
          {panes.map((pane) => (
            <PaneState.Provider key={pane.index} value={pane}>
              <DataPane />
            </PaneState.Provider>
          ))}
        </Flex>
      </Stack>
    </Box>
  );
};

export default Data;
