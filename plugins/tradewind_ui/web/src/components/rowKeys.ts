const PAGE_ROWS = 15;

/** Return the row that a key moves to; undefined for other keys, and where there are no rows. */
export const targetRow = (key: string, active: number, count: number): number | undefined => {
  const targets: Record<string, number> = {
    ArrowDown: active + 1,
    ArrowUp: active - 1,
    End: count - 1,
    Home: 0,
    PageDown: active + PAGE_ROWS,
    PageUp: active - PAGE_ROWS,
  };
  const target = targets[key];
  return target === undefined || count === 0 ? undefined : Math.min(Math.max(target, 0), count - 1);
};
