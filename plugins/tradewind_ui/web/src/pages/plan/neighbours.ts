import type { Point } from "./layout";

const DIRECTIONS: Record<string, readonly [number, number]> = {
  ArrowDown: [0, 1],
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
};

/** Return the node that an arrow key leads to: the nearest in its direction, those straight ahead first. */
export const nearest = (positions: ReadonlyMap<string, Point>, from: string, key: string): string | undefined => {
  const start = positions.get(from);
  const direction = DIRECTIONS[key];
  if (start === undefined || direction === undefined) {
    return undefined;
  }
  const [dx, dy] = direction;
  let best: string | undefined;
  let least = Infinity;
  for (const [id, { x, y }] of positions) {
    const ahead = (x - start.x) * dx + (y - start.y) * dy;
    const aside = Math.abs((x - start.x) * dy) + Math.abs((y - start.y) * dx);
    if (ahead > 0 && ahead + 2 * aside < least) {
      best = id;
      least = ahead + 2 * aside;
    }
  }
  return best;
};
