import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { configure, render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { MemoryRouter, useLocation } from "react-router-dom";
import { beforeEach, expect, it, vi } from "vitest";

vi.setConfig({ testTimeout: 60_000 });
// Views are loaded when they are shown, which takes seconds on a busy machine.
configure({ asyncUtilTimeout: 15_000 });

const ROOT = "/store";
const entry = (name: string, kind: string) => ({ kind, name, path: `${ROOT}/${name}` });
const folder = (path: string) => ({ format: "folder", kind: "folder", name: path, path, title: "folder", views: ["entries"] });
const HOSTILE = `<img src=x onerror="alert(1)"> the tide`;

type Answer = readonly [status: number, body: unknown];

const ANSWERS: Record<string, (query: URLSearchParams) => Answer> = {
  describe: (query) => {
    const path = query.get("path") ?? "";
    if (path.endsWith("gone")) {
      return [404, { detail: "There is no /store/gone." }];
    }
    if (path.endsWith("slow")) {
      return [503, { detail: "The store of /store/slow does not answer." }];
    }
    return path.endsWith(".jsonl")
      ? [200, { columns: [{ name: "text", type: "text" }], format: "jsonl", kind: "file", name: "rows.jsonl", path, title: "JSON lines", views: ["rows"] }]
      : [200, folder(path)];
  },
  list: (query) => [200, { entries: query.get("path") === ROOT ? [entry("a", "folder"), entry("b", "folder"), entry("rows.jsonl", "file")] : [], path: query.get("path") }],
  roots: () => [200, [{ path: ROOT }]],
  rows: () => [200, { columns: [{ name: "text", type: "text" }], format: "jsonl", next: null, path: "", rows: [{ at: "0", cut: [0], number: 1, values: [HOSTILE] }] }],
  value: () => [200, { at: "0", chars: 40, column: "text", kind: "text", path: "", text: `${HOSTILE}, to its end` }],
};

const answers = { ...ANSWERS };

vi.stubGlobal("fetch", (request: Request) => {
  const url = new URL(request.url);
  const [status, body] = answers[url.pathname.split("/").at(-1) ?? ""]?.(url.searchParams) ?? [500, {}];
  return Promise.resolve(new Response(JSON.stringify(body), { headers: { "Content-Type": "application/json" }, status }));
});

// The client takes the fetch that is there when it is loaded.
const { default: Data } = await import(".");

const Where = () => <output>{decodeURIComponent(useLocation().search)}</output>;

const open = (query: string) =>
  render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[`/plugin/tradewind_data${query}`]}>
        <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
          <Data />
        </QueryClientProvider>
        <Where />
      </MemoryRouter>
    </ChakraProvider>,
  );

const where = () => document.querySelector("output")?.textContent;

beforeEach(() => void Object.assign(answers, ANSWERS));

it("goes down by Enter and up by Backspace, with the focus where the user was", async () => {
  const user = userEvent.setup();
  open("?path=/store");
  (await screen.findByText("a/")).closest("tr")?.focus();
  await user.keyboard("{ArrowDown}");
  await waitFor(() => expect(document.activeElement?.textContent).toContain("b/"));
  await user.keyboard("{Enter}");
  await waitFor(() => expect(where()).toBe("?path=/store/b"));
  await screen.findByText("This folder is empty");
  await waitFor(() => expect(document.activeElement?.tagName).toBe("H2"));
  await user.keyboard("{Backspace}");
  await waitFor(() => expect(where()).toBe("?path=/store"));
  await waitFor(() => expect(document.activeElement?.textContent).toContain("b/"));
});

it("shows a record as text, marks the term, and opens a cut value whole", async () => {
  const user = userEvent.setup();
  open("?path=/store/rows.jsonl&view=cards&find=TIDE");
  expect((await screen.findByText("tide")).tagName).toBe("MARK");
  expect(document.querySelector("article img")).toBeNull();
  await user.click(screen.getByText("Show whole"));
  expect(await screen.findByText(/to its end/u)).toBeTruthy();
});

it("shows paths side by side, and closes one", async () => {
  const user = userEvent.setup();
  open("?path=/store/a&path=/store/rows.jsonl&view2=cards");
  await screen.findByText("This folder is empty");
  await user.click((await screen.findAllByText("Close"))[0] as HTMLElement);
  await waitFor(() => expect(where()).toBe("?path=/store/rows.jsonl&view=cards"));
});

it("says that a path is gone, in the server's words", async () => {
  open("?path=/store/gone");
  expect(await screen.findByText("There is no /store/gone.")).toBeTruthy();
  expect(screen.queryByText("Try again")).toBeNull();
});

it("begins anew when the file has changed since the page before", async () => {
  const user = userEvent.setup();
  answers.rows = (query) => (query.has("cursor") ? [409, { detail: "/store/rows.jsonl has changed." }] : (ANSWERS.rows?.(query) ?? [500, {}]));
  open("?path=/store/rows.jsonl&view=cards&cursor=1@old");
  expect(await screen.findByText("/store/rows.jsonl has changed.")).toBeTruthy();
  await user.click(screen.getByText("Begin at the first rows"));
  expect(await screen.findByText(/the tide/u)).toBeTruthy();
});

it("says how many rows match, on this page and in all", async () => {
  const found = (more: number | null) => () => {
    const [, body] = ANSWERS.rows?.(new URLSearchParams()) ?? [];
    return [200, { ...(body as object), more, scanned: 32, total: 300 }] as Answer;
  };
  answers.rows = found(148);
  const { unmount } = open("?path=/store/rows.jsonl&view=cards&filter=tide");
  expect(await screen.findByText("1 of 149 matching rows, rows 1–1 of 300")).toBeTruthy();
  unmount();
  answers.rows = found(null);
  open("?path=/store/rows.jsonl&view=cards&filter=tide");
  expect(await screen.findByText("1 of 32 rows read match, rows 1–1 of 300")).toBeTruthy();
});

it("keeps the choice of 0 and 1, which are not called right or wrong, while a page does not come", async () => {
  const user = userEvent.setup();
  const columns = ["prompt", "target", "answer", "score/acc"].map((name) => ({ name, type: "string" }));
  answers.describe = () => [200, { columns, format: "parquet", kind: "file", name: "s.parquet", path: "/store/s.parquet", title: "Parquet", views: ["rows"] }];
  answers.rows = (query) =>
    query.has("filter")
      ? [429, { detail: "All readers are busy." }]
      : [200, { columns, format: "parquet", next: null, path: "", rows: [{ at: "0", number: 1, values: ["1 + 1", "2", "3", 0] }] }];
  open("?path=/store/s.parquet");
  await user.click(await screen.findByRole("button", { name: "acc 0" }));
  expect(await screen.findByText("The readers are busy")).toBeTruthy();
  expect(screen.getByText("Try again")).toBeTruthy();
  expect(screen.getByRole("button", { name: "acc 1" })).toBeTruthy();
  expect(screen.queryByText(/right|wrong/iu)).toBeNull();
});

it("reads a text on only while its file is the same", async () => {
  const user = userEvent.setup();
  answers.describe = () => [200, { format: "text", kind: "file", name: "a.log", path: "/store/a.log", title: "text", views: ["text"] }];
  answers.text = (query) =>
    query.get("state") === "@1"
      ? [409, { detail: "/store/a.log has changed." }]
      : [200, { end: 4, is_binary: false, next: 4, path: "/store/a.log", previous: null, size: 8, start: 0, state: "@1", text: "one" }];
  open("?path=/store/a.log");
  await screen.findByText("one");
  await user.click(screen.getByText("Next"));
  expect(await screen.findByText("/store/a.log has changed.")).toBeTruthy();
  expect(where()).toBe("?path=/store/a.log&offset=4&line=1&state=@1");
  await user.click(screen.getByText("Begin at the start"));
  expect(await screen.findByText("one")).toBeTruthy();
});

it("tries again when the store did not answer", async () => {
  const user = userEvent.setup();
  open("?path=/store/slow");
  const button = await screen.findByText("Try again");
  answers.describe = () => [200, folder("/store/slow")];
  await user.click(button);
  expect(await screen.findByText("This folder is empty")).toBeTruthy();
});

it("says how an administrator gives the permission", async () => {
  answers.roots = () => [403, { detail: "Your role has no permission to read 'Tradewind Data'. An administrator can give it." }];
  open("");
  expect(await screen.findByText(/airflow roles add-perms/u)).toBeTruthy();
});
