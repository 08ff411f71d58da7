import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { configure, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { MemoryRouter } from "react-router-dom";
import { beforeEach, expect, it, vi } from "vitest";

vi.setConfig({ testTimeout: 60_000 });
// Views are loaded when they are shown, which takes seconds on a busy machine.
configure({ asyncUtilTimeout: 15_000 });

const ROOT = "/store";
const entry = (name: string, kind: string) => ({ kind, name, path: `${ROOT}/${name}` });
const folder = (path: string) => ({ format: "folder", kind: "folder", name: path, path, title: "folder", views: ["entries"] });

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
};

const answers = { ...ANSWERS };

vi.stubGlobal("fetch", (request: Request) => {
  const url = new URL(request.url);
  const [status, body] = answers[url.pathname.split("/").at(-1) ?? ""]?.(url.searchParams) ?? [500, {}];
  return Promise.resolve(new Response(JSON.stringify(body), { headers: { "Content-Type": "application/json" }, status }));
});

// The client takes the fetch that is there when it is loaded.
const { default: Data } = await import(".");

const open = (query: string) =>
  render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[`/plugin/tradewind_data${query}`]}>
        <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
          <Data />
        </QueryClientProvider>
      </MemoryRouter>
    </ChakraProvider>,
  );

beforeEach(() => void Object.assign(answers, ANSWERS));

it("says that a path is gone, in the server's words", async () => {
  open("?path=/store/gone");
  expect(await screen.findByText("There is no /store/gone.")).toBeTruthy();
  expect(screen.queryByText("Try again")).toBeNull();
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
