/** Numbers and times as the command line prints them too (`human_size`, `format_duration`, `format_age`). */

const SIZES = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const COUNTS = ["", "k", "M", "B", "T"];
const AGES: readonly (readonly [number, string])[] = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
];
/** Where Airflow keeps the time zone that the user chose at the top of its page. */
const ZONE_KEY = "timezone";

const scaled = (value: number, step: number, units: readonly string[]): [number, string] => {
  let amount = Math.abs(value);
  let index = 0;
  while (amount >= step - 0.5 && index < units.length - 1) {
    amount /= step;
    index += 1;
  }
  return [Math.sign(value) * Number(amount.toPrecision(3)), units[index] ?? ""];
};

/** Format a number of bytes as `12 bytes`, `1.5 kB`, `20 GB`. */
export const formatBytes = (bytes: number): string => scaled(bytes, 1000, SIZES).join(" ");

/** Format a whole number with its thousands apart, as `1,234,567`. */
export const formatCount = (count: number): string => count.toLocaleString("en-US", { maximumFractionDigits: 0 });

/** Format a large number in few characters, as `1.23M`. */
export const formatShortCount = (count: number): string => scaled(count, 1000, COUNTS).join("");

/** Format as `1 row`, `1,200 rows`. */
export const pluralize = (count: number, noun: string): string =>
  `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

/** Format seconds as `40 s`, `12 min`, `3.5 h`. */
export const formatDuration = (seconds: number): string => {
  if (seconds < 120) {
    return `${seconds.toFixed(0)} s`;
  }
  return seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
};

/** Format seconds since something as `3 days ago`, `a moment ago`. */
export const formatAge = (seconds: number): string => {
  const [size, unit] = AGES.find(([each]) => seconds >= each) ?? [0, ""];
  return size === 0 ? "a moment ago" : `${pluralize(Math.floor(seconds / size), unit)} ago`;
};

/** Format the age of a time, given in seconds since 1970. */
export const formatSince = (timestamp: number, now: number = Date.now() / 1000): string => formatAge(now - timestamp);

const isZone = (zone: unknown): zone is string => {
  try {
    return typeof zone === "string" && zone !== "" && new Intl.DateTimeFormat("en", { timeZone: zone }) !== null;
  } catch {
    return false;
  }
};

/** Return the time zone that the user chose in Airflow; UTC without a choice. */
export const chosenZone = (): string => {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(ZONE_KEY) ?? "null");
    return isZone(stored) ? stored : "UTC";
  } catch {
    return "UTC";
  }
};

/** Format a time, given in seconds since 1970, to the minute, as `2026-11-29 18:57 UTC`. */
export const formatTime = (timestamp: number, zone: string = chosenZone()): string => {
  const parts = new Intl.DateTimeFormat("en-US", {
    day: "2-digit",
    hour: "2-digit",
    hourCycle: "h23",
    minute: "2-digit",
    month: "2-digit",
    timeZone: zone,
    timeZoneName: "short",
    year: "numeric",
  }).formatToParts(timestamp * 1000);
  const part = (type: Intl.DateTimeFormatPartTypes) => parts.find((each) => each.type === type)?.value ?? "";
  return `${part("year")}-${part("month")}-${part("day")} ${part("hour")}:${part("minute")} ${part("timeZoneName")}`;
};

/** Format a measured number in at most four digits, as `2.718`, `0.0003`, `12,346`. */
export const formatNumber = (value: number): string => {
  if (!Number.isFinite(value)) {
    return String(value);
  }
  return value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)
    ? value.toExponential(3)
    : value.toLocaleString("en-US", { maximumSignificantDigits: Math.max(4, Math.trunc(Math.abs(value)).toString().length) });
};
