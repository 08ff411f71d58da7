import { describe, expect, it } from "vitest";

import { orderOf, sortAfterClick } from "./rowOrder";
import type { Column, Value } from "./tableParts";

const COLUMN: Column<Value> = { header: "Value", id: "value", value: (row) => row };
const sorted = (rows: readonly Value[], sort: string) => orderOf(rows, [COLUMN], sort)?.map((index) => rows[index]);

describe("orderOf", () => {
  it.each<[readonly Value[], string, readonly Value[]]>([
    [["file 10", "File 9", "b"], "value", ["b", "File 9", "file 10"]],
    [[2, null, 10, undefined, -1], "value", [-1, 2, 10, null, undefined]],
    [[2, null, 10], "-value", [10, 2, null]],
    [["a", 3, true, "10"], "value", [true, 3, "10", "a"]],
    [[true, false], "value", [false, true]],
  ])("orders %j by %s", (rows, sort, expected) => expect(sorted(rows, sort)).toEqual(expected));

  it.each(["", undefined, "other"])("leaves rows as they are for %j", (sort) => expect(orderOf([2, 1], [COLUMN], sort)).toBeUndefined());
});

describe("sortAfterClick", () => {
  it.each<[readonly Value[], readonly string[]]>([
    [[null, "a"], ["value", "-value", ""]],
    [[1], ["-value", "value", ""]],
  ])("goes through the orders of %j", (rows, expected) => {
    const next = (sort: string) => sortAfterClick(rows, COLUMN, sort);
    expect([next("other"), next(next("")), next(next(next("")))]).toEqual(expected);
  });
});
