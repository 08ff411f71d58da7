import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { fireEvent, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it, vi } from "vitest";

import { DataTable } from "./DataTable";
import type { Column } from "./DataTable";
import { targetRow } from "./rowKeys";

// Roles are computed from styles, which takes seconds on a busy machine.
vi.setConfig({ testTimeout: 30_000 });

type File = { readonly name: string; readonly size?: number };

const COLUMNS: readonly Column<File>[] = [
  { header: "Name", id: "name", value: (row) => row.name },
  { end: true, header: "Size", id: "size", value: (row) => row.size },
  { cell: (row) => <a href="#there">to {row.name}</a>, header: "Link", id: "link" },
];
const FILES: readonly File[] = [{ name: "b", size: 2 }, { name: "c" }, { name: "a", size: 10 }];

const show = (more: Partial<Parameters<typeof DataTable<File>>[0]> = {}) =>
  render(
    <ChakraProvider value={defaultSystem}>
      <DataTable columns={COLUMNS} label="Files" rowKey={(row) => row.name} rows={FILES} {...more} />
    </ChakraProvider>,
  );

const names = () =>
  screen
    .getAllByRole("row")
    .slice(1)
    .map((row) => within(row).getAllByRole("cell")[0]?.textContent);

describe("DataTable", () => {
  it("sorts by a column, with missing values at the end", async () => {
    const user = userEvent.setup();
    show();
    expect(names()).toEqual(["b", "c", "a"]);
    await user.click(screen.getByRole("button", { name: "Name" }));
    expect(names()).toEqual(["a", "b", "c"]);
    await user.click(screen.getByRole("button", { name: "Size" }));
    expect(names()).toEqual(["a", "b", "c"]);
    expect(screen.getByRole("columnheader", { name: /Size/u }).getAttribute("aria-sort")).toBe("descending");
    expect(screen.queryByRole("button", { name: "Link" })).toBeNull();
  });

  it("leaves the order to a caller that keeps it", async () => {
    const user = userEvent.setup();
    const onSort = vi.fn();
    show({ onSort, sort: "-name" });
    expect(names()).toEqual(["c", "b", "a"]);
    await user.click(screen.getByRole("button", { name: "Size" }));
    expect(onSort).toHaveBeenCalledWith("-size");
    expect(names()).toEqual(["c", "b", "a"]);
  });

  it("leaves rows that come in order as they are", () => {
    show({ isInOrder: true, onSort: vi.fn(), sort: "-name" });
    expect(names()).toEqual(["b", "c", "a"]);
    expect(screen.getByRole("columnheader", { name: /Name/u }).getAttribute("aria-sort")).toBe("descending");
  });

  it("moves between rows by keys, and opens one", async () => {
    const user = userEvent.setup();
    const onRowClick = vi.fn();
    show({ focusOn: "first", onRowClick });
    expect(document.activeElement?.textContent).toContain("to b");
    await user.keyboard("{ArrowDown}{End}{Enter}");
    expect(document.activeElement?.textContent).toContain("to a");
    expect(onRowClick).toHaveBeenCalledExactlyOnceWith(FILES[2]);
  });

  it("starts at the row that the caller names", () => {
    show({ focusOn: "c" });
    expect(document.activeElement?.textContent).toContain("to c");
  });

  it("leaves clicks on links of a cell to them", async () => {
    const user = userEvent.setup();
    const onRowClick = vi.fn();
    show({ onRowClick });
    await user.click(screen.getByRole("link", { name: "to a" }));
    expect(onRowClick).not.toHaveBeenCalled();
    await user.click(screen.getByText("a"));
    expect(onRowClick).toHaveBeenCalledOnce();
  });

  it("widens a column by keys", async () => {
    const user = userEvent.setup();
    show();
    screen.getByRole("button", { name: "Name" }).focus();
    await user.keyboard("{Shift>}{ArrowRight}{/Shift}");
    const header = screen.getByRole("columnheader", { name: "Name" });
    expect(getComputedStyle(header).width).toBe("184px");
  });

  it("ends what is cut with an ellipsis, and has it whole as title", () => {
    show();
    const link = screen.getByRole("link", { name: "to a" });
    expect(getComputedStyle(link).display).toBe("inline");
    const cell = link.closest("td");
    fireEvent.mouseEnter(cell as Element);
    expect(cell?.title).toBe("");
    vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(20);
    vi.spyOn(Element.prototype, "scrollWidth", "get").mockReturnValue(90);
    fireEvent.mouseEnter(cell as Element);
    expect(cell?.title).toBe("to a");
    expect(getComputedStyle(cell as Element).textOverflow).toBe("ellipsis");
    vi.restoreAllMocks();
  });

  it("draws few of many rows, and says how many there are", () => {
    vi.spyOn(Element.prototype, "clientHeight", "get").mockReturnValue(400);
    vi.spyOn(HTMLElement.prototype, "offsetHeight", "get").mockReturnValue(37);
    const rows = Array.from({ length: 20_000 }, (_, at) => ({ name: `file ${at}` }));
    show({ focusOn: "file 15000", rows });
    expect(screen.getByRole("grid", { name: "Files" }).getAttribute("aria-rowcount")).toBe("20001");
    const drawn = document.querySelectorAll("[data-index]").length;
    expect(drawn).toBeGreaterThan(10);
    expect(drawn).toBeLessThan(60);
    expect(document.activeElement?.textContent).toContain("file 15000");
    vi.restoreAllMocks();
  });

  it("shows and sorts 300,000 rows", async () => {
    const user = userEvent.setup();
    vi.spyOn(Element.prototype, "clientHeight", "get").mockReturnValue(400);
    vi.spyOn(HTMLElement.prototype, "offsetHeight", "get").mockReturnValue(37);
    show({ rows: Array.from({ length: 300_000 }, (_, at) => ({ name: `file ${at}`, size: at })) });
    await user.click(screen.getByRole("button", { name: "Size" }));
    expect(document.querySelector('[data-index="0"]')?.textContent).toContain("file 299999");
    vi.restoreAllMocks();
  });

  it("says why there are no rows", () => {
    show({ empty: "This folder is empty.", rows: [] });
    expect(screen.getByText("This folder is empty.")).toBeTruthy();
  });
});

describe("targetRow", () => {
  it.each([
    ["ArrowDown", 0, 3, 1],
    ["ArrowDown", 2, 3, 2],
    ["ArrowUp", 0, 3, 0],
    ["Home", 2, 3, 0],
    ["End", 0, 3, 2],
    ["PageDown", 0, 100, 15],
    ["PageUp", 3, 100, 0],
    ["Enter", 0, 3, undefined],
    ["Home", 0, 0, undefined],
  ])("moves by %s from %d of %d to %s", (key, active, count, target) => expect(targetRow(key, active, count)).toBe(target));
});
