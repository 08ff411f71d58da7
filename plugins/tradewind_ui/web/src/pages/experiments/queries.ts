import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";

import { answered, api } from "../../api/client";
import type { Schemas } from "../../api/client";
import type { View } from "./address";

type OutputsPage = Schemas["OutputsPage"];

export const PAGE_ROWS = 100;
const READING_MS = 2000;

/** While the server reads a prefix, ask again until it has. */
const untilRead = (readingS: number | null | undefined) => (typeof readingS === "number" ? READING_MS : false);

/** Ask for all pages again until they are parts of one list: offsets of another one would skip or repeat outputs. */
const untilOne = (pages: readonly OutputsPage[]) =>
  pages.some((page) => page.reading_s !== null || page.order !== pages[0]?.order) ? READING_MS : false;

export const useOutputs = (view: View) =>
  useInfiniteQuery({
    getNextPageParam: ({ admitted, offset, rows }: OutputsPage) =>
      rows.length > 0 && offset + rows.length < admitted ? offset + rows.length : undefined,
    initialPageParam: 0,
    placeholderData: keepPreviousData,
    queryFn: ({ pageParam }) =>
      answered(
        api.GET("/api/experiments/outputs", {
          params: {
            query: {
              experiment: view.experiment,
              file: view.file,
              limit: PAGE_ROWS,
              offset: pageParam,
              pinned: view.isPinned ? true : undefined,
              prefix: view.prefix,
              producer: view.producer,
              sort: view.sort,
              state: [...view.states],
              text: view.text,
            },
          },
        }),
      ),
    queryKey: ["experiments", "outputs", { ...view, tab: undefined, task: undefined }],
    refetchInterval: ({ state }) => untilOne(state.data?.pages ?? []),
  });

export const useFiles = (prefix: string) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/experiments/files", { params: { query: { prefix } } })),
    queryKey: ["experiments", "files", prefix],
    refetchInterval: ({ state }) => untilRead(state.data?.reading_s),
  });

export const useLeaderboards = (prefix: string) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/experiments/leaderboards", { params: { query: { prefix } } })),
    queryKey: ["experiments", "leaderboards", prefix],
    refetchInterval: ({ state }) => untilRead(state.data?.reading_s),
  });
