import { afterEach, describe, expect, it } from "vitest";

import {
  chosenZone,
  formatAge,
  formatBytes,
  formatCount,
  formatDuration,
  formatNumber,
  formatShortCount,
  formatTime,
  pluralize,
} from "./format";

afterEach(() => localStorage.clear());

describe("numbers", () => {
  it.each([
    [0, "0 bytes"],
    [999, "999 bytes"],
    [1000, "1 kB"],
    [999_600, "1 MB"],
    [1_540_000, "1.54 MB"],
    [20_000_000_000, "20 GB"],
    [2.5e18, "2500 PB"],
  ])("formats %d bytes as %s", (bytes, text) => expect(formatBytes(bytes)).toBe(text));

  it.each([
    [0, "0"],
    [950, "950"],
    [12_345, "12.3k"],
    [7e9, "7B"],
    [-1500, "-1.5k"],
  ])("shortens %d to %s", (count, text) => expect(formatShortCount(count)).toBe(text));

  it.each([
    [2.718281828, "2.718"],
    [0.00031234, "0.0003123"],
    [12_345.678, "12,346"],
    [0.00000123, "1.230e-6"],
    [NaN, "NaN"],
  ])("formats the measurement %d as %s", (value, text) => expect(formatNumber(value)).toBe(text));

  it("puts thousands apart and nouns into the plural", () => {
    expect(formatCount(1_234_567)).toBe("1,234,567");
    expect([pluralize(0, "row"), pluralize(1, "row"), pluralize(1200, "row")]).toEqual(["0 rows", "1 row", "1,200 rows"]);
  });
});

describe("times", () => {
  it.each([
    [40, "40 s"],
    [720, "12 min"],
    [12_600, "3.5 h"],
  ])("formats %d s as %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));

  it.each([
    [-5, "a moment ago"],
    [59, "a moment ago"],
    [60, "1 minute ago"],
    [7300, "2 hours ago"],
    [259_200, "3 days ago"],
  ])("formats an age of %d s as %s", (seconds, text) => expect(formatAge(seconds)).toBe(text));

  it("formats times in UTC or in the zone that Airflow's user chose", () => {
    expect(formatTime(0)).toBe("1970-01-01 00:00 UTC");
    localStorage.setItem("timezone", '"Asia/Tokyo"');
    expect(formatTime(0)).toBe("1970-01-01 09:00 GMT+9");
  });

  it.each(['"Mars/Olympus"', "{", '"system"', "7"])("takes UTC where %s is stored as the zone", (stored) => {
    localStorage.setItem("timezone", stored);
    expect(chosenZone()).toBe("UTC");
  });
});
