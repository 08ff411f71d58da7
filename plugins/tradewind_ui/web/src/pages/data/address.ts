/** The address of the page: up to four paths side by side, and how each is shown. */

export const MAX_PANES = 4;

const KEYS = ["view", "start", "cursor", "at", "limit", "filter", "row", "offset", "line", "state", "prefix", "sort", "wrap"] as const;

type Key = (typeof KEYS)[number];

/** One path, and how it is shown. Fields that are missing are as at first. An empty path is the list of roots. */
export type Pane = { readonly [key in Key]?: string } & {
  readonly columns?: readonly string[];
  readonly path: string;
};

export type Address = {
  /** Text that is marked wherever it occurs. */
  readonly find: string;
  readonly panes: readonly Pane[];
};

/** The parameters of the second pane end in 2, and so on. */
const suffixed = (key: string, index: number) => (index === 0 ? key : `${key}${index + 1}`);

/** Return the fields of a change without those that are unset. */
const withoutUnset = <Fields extends object>(fields: Fields): Fields =>
  Object.fromEntries(
    Object.entries(fields).filter(([, value]) => value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0)),
  ) as Fields;

const readPane = (params: URLSearchParams, path: string, index: number): Pane => {
  const fields = KEYS.map((key) => [key, params.get(suffixed(key, index)) ?? undefined] as const);
  return { ...withoutUnset({ ...Object.fromEntries(fields), columns: params.getAll(suffixed("columns", index)) }), path };
};

export const readAddress = (params: URLSearchParams): Address => {
  const paths = params.getAll("path").slice(0, MAX_PANES);
  return {
    find: params.get("find") ?? "",
    panes: (paths.length === 0 ? [""] : paths).map((path, index) => readPane(params, path, index)),
  };
};

export const writeAddress = ({ find, panes }: Address): URLSearchParams => {
  const params = new URLSearchParams();
  if (panes.length > 1 || panes[0]?.path !== "") {
    panes.forEach((pane) => params.append("path", pane.path));
  }
  panes.forEach((pane, index) => {
    KEYS.forEach((key) => {
      const value = pane[key];
      if (value !== undefined && value !== "") {
        params.set(suffixed(key, index), value);
      }
    });
    pane.columns?.forEach((column) => params.append(suffixed("columns", index), column));
  });
  if (find !== "") {
    params.set("find", find);
  }
  return params;
};

/** Return the address after a change of one pane; undefined fields go back to what they are at first. */
export const withPane = (address: Address, index: number, change: Partial<Pane>): Address => ({
  ...address,
  panes: address.panes.map((pane, at) => (at === index ? { ...withoutUnset({ ...pane, ...change }), path: change.path ?? pane.path } : pane)),
});

/** Return the address with another path in a pane: nothing of how the one before was shown stays. */
export const withPath = (address: Address, index: number, path: string): Address => ({
  ...address,
  panes: address.panes.map((pane, at) => (at === index ? { path } : pane)),
});

export const withPaneBeside = (address: Address, path: string): Address => ({
  ...address,
  panes: [...address.panes, { path }].slice(0, MAX_PANES),
});

export const withoutPane = (address: Address, index: number): Address => ({
  ...address,
  panes: address.panes.filter((_, at) => at !== index),
});

/** What a change to a pane's place unsets, so that no two places are in one address. */
export const NO_PLACE = { at: undefined, cursor: undefined, line: undefined, offset: undefined, row: undefined, start: undefined, state: undefined };
