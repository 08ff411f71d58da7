import { describe, expect, it } from "vitest";

import { readAddress, withoutPane, withPane, withPaneBeside, withPath, writeAddress } from "./address";
import { cellsOf, laidOut, listOf } from "./cells";
import type { RowPage } from "./cells";
import { splitByTerms, termsOfFilter, withCondition } from "./highlight";
import { makerHref } from "./MakerLink";
import { isHeavy } from "./MarkdownView";
import { crumbsOf, nameOf, parentOf, resolvePath, rootOf } from "./paths";
import { placeBefore } from "./places";
import { lineEnds, lineNumbers } from "./TextView";
import { viewsOf } from "./views";

const read = (query: string) => readAddress(new URLSearchParams(query));

describe("address", () => {
  it.each([
    "path=gs%3A%2F%2Fb%2Fa&view=cards&cursor=12&filter=lang%3Ade&columns=text&columns=id%2Ca",
    "path=%2Fa&path=%2Fb&view=text&offset=-65536&wrap=yes&view2=table&limit2=1000&row2=7&find=tide",
    "",
  ])("writes what it reads: %s", (query) => expect(writeAddress(read(query)).toString()).toBe(
    // The parameters of a pane come in a fixed order.
    writeAddress(readAddress(writeAddress(read(query)))).toString(),
  ));

  it("reads each pane's own parameters", () => {
    expect(read("path=/a&path=/b&view=text&view2=cards&columns2=x&columns2=y&find=t")).toEqual({
      find: "t",
      panes: [{ path: "/a", view: "text" }, { columns: ["x", "y"], path: "/b", view: "cards" }],
    });
  });

  it("shows at most four paths, and the roots without any", () => {
    expect(read("path=1&path=2&path=3&path=4&path=5").panes).toHaveLength(4);
    expect(read("").panes).toEqual([{ path: "" }]);
    expect(withPaneBeside(read("path=1&path=2&path=3&path=4"), "5").panes).toHaveLength(4);
  });

  it("forgets how the path before was shown", () => {
    const address = read("path=/a&view=text&path=/b&view2=cards&filter2=x");
    expect(writeAddress(withPath(address, 1, "/c")).toString()).toBe("path=%2Fa&path=%2Fc&view=text");
    expect(writeAddress(withPane(address, 1, { filter: undefined, view: "table" })).toString()).toBe("path=%2Fa&path=%2Fb&view=text&view2=table");
    expect(writeAddress(withoutPane(address, 0)).toString()).toBe("path=%2Fb&view=cards&filter=x");
  });
});

describe("paths", () => {
  const roots = ["gs://bucket/data", "/store", "/store/inner/"];

  it.each([
    ["gs://bucket/data/a/b.md", ["gs://bucket/data", "a", "b.md"], "gs://bucket/data/a"],
    ["/store/a/", ["/store", "a"], "/store"],
    ["/store/inner/x", ["/store/inner", "x"], "/store/inner"],
    ["/store", ["/store"], ""],
    ["/storehouse/a", ["/storehouse/a"], ""],
  ])("leads from the root to %s", (path, names, parent) => {
    expect(crumbsOf(path, roots).map(({ name }) => name)).toEqual(names);
    expect(parentOf(path, roots)).toBe(parent);
  });

  it("names a path by its end, also that of a folder", () => expect([nameOf("/a/b/"), nameOf("gs://bucket")]).toEqual(["b", "bucket"]));

  it("takes no folder with the same beginning for a root", () => expect(rootOf("/storehouse/a", roots)).toBeUndefined());

  it.each([
    ["gs://b/a/report.md", "loss.png", "gs://b/a/loss.png"],
    ["gs://b/a/report.md", "../c/x%20y.png", "gs://b/c/x y.png"],
    ["gs://b/a/report.md", "../../../x", undefined],
    ["/s/a.md", "https://elsewhere.example/x.png", undefined],
    ["/s/a.md", "//elsewhere.example/x.png", undefined],
    ["/s/a.md", "javascript:alert(1)", undefined],
    ["/s/a.md", "#part", undefined],
    ["/s/a.md", "%E0%A4%A", undefined],
  ])("resolves in %s the address %s to %s", (document, relative, path) => expect(resolvePath(document, relative)).toBe(path));
});

describe("highlight", () => {
  const marked = (text: string, ...terms: string[]) => splitByTerms(text, terms).map((piece) => (piece.isMatch ? `[${piece.text}]` : piece.text)).join("");

  it.each([
    ["The tide, a TIDE", ["tide"], "The [tide], a [TIDE]"],
    ["a.b a+b", ["a.b"], "[a.b] a+b"],
    ["tidewater tide", ["tide", "tidewater"], "[tidewater] [tide]"],
    ["<b>x</b>", ["<b>"], "[<b>]x</b>"],
    ["none", ["", "x"], "none"],
    ["", ["x"], ""],
  ])("marks in %s", (text, terms, result) => expect(marked(text, ...terms)).toBe(result));

  it("loses no text, and stops marking after 2,000 matches", () => {
    const text = "ab".repeat(10_000);
    const pieces = splitByTerms(text, ["a"]);
    expect(pieces.map((piece) => piece.text).join("")).toBe(text);
    expect(pieces.length).toBeLessThan(4100);
  });

  it("marks what a filter looks for, without its column", () => {
    const columns = ["lang", "task", "score/acc"];
    expect(termsOfFilter("lang:de", columns, "score/")).toEqual(["de"]);
    expect(termsOfFilter("lang=de & score/acc=0", columns, "score/")).toEqual(["de"]);
    expect(termsOfFilter("lang:a & b", columns, "score/")).toEqual(["a & b"]);
    expect(termsOfFilter("https://x", columns, "score/")).toEqual(["https://x"]);
  });

  it.each([
    ["task=arc & score/acc=0", "score/acc=1", "task=arc & score/acc=1"],
    ["task=arc & score/acc=0", undefined, "task=arc"],
    ["some text", "score/acc=0", "score/acc=0"],
    ["", undefined, ""],
  ])("changes one condition of the filter %j to %j", (filter, condition, changed) =>
    expect(withCondition(filter, ["task", "score/acc"], "score/acc", condition)).toBe(changed),
  );
});

describe("rows", () => {
  const page = (first: number | null): RowPage => ({ columns: [], format: "", next: "n", path: "/p", rows: [{ at: "x@m", number: first, values: [] }], scanned: 0 });

  it("keeps what the server says of each value", () => {
    const columns = [{ name: "a", type: "text" }, { name: "b", type: "list" }];
    const [a, b] = cellsOf({ columns }, { at: "0", cut: [1], nested: [1], number: 1, values: [null, "[1, 2"] });
    expect([a?.text, a?.isCut, b?.text, b?.isCut, b?.isNested]).toEqual(["", false, "[1, 2", true, true]);
    expect(laidOut("[1, 2")).toBe("[1, 2");
    expect(laidOut('{"a": 1}')).toBe('{\n  "a": 1\n}');
  });

  it.each([
    ["[1, 22, 3]", [1, 22, 3]],
    ["[1, 22, 3", [1, 22]],
    ['["a", " b"]', ["a", " b"]],
    ["no list", []],
  ])("reads the tokens of %s, without a last that was cut", (text, tokens) => expect(listOf(text)).toEqual(tokens));

  it.each([
    ["row numbers tell it", { cursor: "c", path: "/p" }, 301, true, {}, { cursor: "200@m", start: undefined }],
    ["the page before is the first", { cursor: "c", path: "/p" }, 51, true, {}, { cursor: undefined, start: undefined }],
    ["the user came from there", { cursor: "c", path: "/p" }, null, false, { c: { at: "0.5" } }, { at: "0.5" }],
    ["a filter hides how many rows were before", { cursor: "c", filter: "x", path: "/p" }, 301, true, {}, undefined],
    ["the address was sent", { cursor: "c", path: "/p" }, null, false, {}, undefined],
    ["it is the first", { path: "/p" }, 1, true, {}, undefined],
  ])("finds the page before where %s", (_, pane, first, isByNumber, visited, place) => {
    const found = placeBefore(pane, page(first), 100, isByNumber, visited);
    expect(found === undefined ? found : Object.fromEntries(Object.keys(place ?? {}).map((key) => [key, found[key as "at"]]))).toEqual(place);
  });
});

describe("views", () => {
  const named = (...names: string[]) => names.map((name) => ({ name, type: "string" }));

  it.each([
    [{ columns: named("text"), format: "jsonl", views: ["rows", "text"] as const }, ["table", "cards", "text"]],
    [{ columns: named("prompt", "answer", "target", "score/acc"), format: "parquet", views: ["rows"] as const }, ["samples", "table", "cards"]],
    [{ format: "token_cache", views: ["rows", "entries"] as const }, ["tokens", "table", "entries"]],
    [{ format: "markdown", views: ["text"] as const }, ["markdown", "text"]],
    [{ format: "binary", views: [] as const }, []],
  ])("offers for $0.format", (description, views) => expect(viewsOf({ ...description, views: [...description.views] })).toEqual(views));

  it("numbers lines, of which the last may have no end", () => {
    expect(lineNumbers("a\nb", 1)).toBe("1\n2");
    expect(lineNumbers("a\nb\n", 9)).toBe("9\n10");
    expect(lineEnds("a\nb\n")).toBe(2);
  });

  it("leads to the task or run that made an output, whatever their ids are", () => {
    expect(makerHref({ dag_id: "d", run_id: "a/b+c", task_id: "t" })).toBe("/dags/d/runs/a%2Fb+c/tasks/t/plugin/tradewind_step");
    expect(makerHref({ dag_id: "d", run_id: "r" })).toBe("/dags/d/runs/r/plugin/tradewind_plan");
    expect(makerHref({ script: "x.py" })).toBeUndefined();
  });
});

describe("isHeavy", () => {
  const readme = `# Title\n\n${"Some *words* and `code`, [a link](b.md).\n- an item\n\n".repeat(2000)}${"| a | `b` |\n".repeat(1000)}`;
  it.each([
    ["a usual document", readme, false],
    ["many quotes", ">".repeat(60_000), true],
    ["many stars", "**a".repeat(20_000), true],
    ["many brackets", "[".repeat(60_000), true],
    ["many levels", `${" ".repeat(800)}- x`, true],
  ])("%s", (_, text, expected) => expect(isHeavy(text)).toBe(expected));
});
