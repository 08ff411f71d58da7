import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";

import { answered, api, pluginUrl } from "../../api/client";
import type { Pane } from "./address";

const LISTED = 500;
export const TEXT_BYTES = 1 << 16;

export const useRoots = () =>
  useQuery({ queryFn: ({ signal }) => answered(api.GET("/api/data/roots", { signal })), queryKey: ["data", "roots"] });

export const useDescription = (path: string) =>
  useQuery({
    enabled: path !== "",
    queryFn: ({ signal }) => answered(api.GET("/api/data/describe", { params: { query: { path } }, signal })),
    queryKey: ["data", "describe", path],
  });

export const useEntries = (path: string, prefix: string) =>
  useInfiniteQuery({
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      answered(api.GET("/api/data/list", { params: { query: { after: pageParam, limit: LISTED, path, prefix } }, signal })),
    queryKey: ["data", "list", path, prefix],
    // After queryFn, from which its type follows.
    getNextPageParam: (last) => last.next ?? undefined,
  });

const numberOf = (text: string | undefined) =>
  text === undefined || text === "" || !Number.isFinite(Number(text)) ? undefined : Number(text);

/** Return the place that an address names: a row's number, a cursor, or a fraction of the file. */
export const placeOf = ({ at, cursor, start }: Pane) => {
  if (cursor !== undefined) {
    return { cursor };
  }
  const fraction = numberOf(at);
  return fraction === undefined
    ? { start: numberOf(start) }
    : { at: Math.min(Math.max(fraction, 0), 1) };
};

export const useRows = (pane: Pane, limit: number) => {
  const { columns, filter, path } = pane;
  const query = { ...placeOf(pane), columns: columns === undefined ? undefined : [...columns], filter, limit, path };
  return useQuery({
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => answered(api.GET("/api/data/rows", { params: { query }, signal })),
    queryKey: ["data", "rows", query],
  });
};

export const useRow = (path: string, at: string | undefined) =>
  useQuery({
    enabled: at !== undefined,
    queryFn: ({ signal }) =>
      answered(api.GET("/api/data/rows", { params: { query: { cursor: at, limit: 1, path } }, signal })),
    queryKey: ["data", "row", path, at],
  });

export const useWholeValue = (path: string, at: string, column: string, isWanted: boolean) =>
  useQuery({
    enabled: isWanted,
    queryFn: ({ signal }) => answered(api.GET("/api/data/value", { params: { query: { at, column, path } }, signal })),
    queryKey: ["data", "value", path, at, column],
    staleTime: Infinity,
  });

/** `state` is that of the range before, if the user came from one. */
export const useText = (path: string, offset: number, bytes: number, state?: string, everySeconds?: number) =>
  useQuery({
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => answered(api.GET("/api/data/text", { params: { query: { bytes, offset, path, state } }, signal })),
    queryKey: ["data", "text", path, offset, bytes, state],
    refetchInterval: everySeconds === undefined ? false : everySeconds * 1000,
  });

/** Return what the server says of an image that the browser could not show. */
export const useImageProblem = (path: string, isWanted: boolean) =>
  useQuery({
    enabled: isWanted,
    queryFn: ({ signal }) => answered(api.GET("/api/data/image", { params: { query: { path } }, parseAs: "blob", signal })),
    queryKey: ["data", "image", path],
  });

export const fileUrl = (route: "download" | "image", path: string) =>
  pluginUrl(`api/data/${route}?${new URLSearchParams({ path }).toString()}`);
