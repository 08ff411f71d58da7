import type { Step } from "./model";

/** Steps that are laid out as one block. */
export type Bundle = { readonly id: string; readonly inputs: ReadonlyArray<string>; readonly members: ReadonlyArray<string> };

/** Up to so many blocks are laid out in time. */
const MAX_BLOCKS = 250;

type Links = { readonly inputs: ReadonlyMap<string, ReadonlyArray<string>>; readonly readers: ReadonlyMap<string, ReadonlyArray<string>> };

const linksOf = (steps: ReadonlyArray<Step>): Links => {
  const known = new Set(steps.map((step) => step.task_id));
  const readers = new Map<string, Array<string>>(steps.map((step) => [step.task_id, []]));
  const inputs = new Map<string, ReadonlyArray<string>>();
  for (const { inputs: all = [], task_id: id } of steps) {
    const mine = all.filter((input) => known.has(input));
    inputs.set(id, mine);
    mine.forEach((input) => readers.get(input)?.push(id));
  }
  return { inputs, readers };
};

/** Return a number for each text, the same for equal ones. */
const numbering = () => {
  const numbers = new Map<string, string>();
  return (text: string): string => {
    const number = numbers.get(text) ?? `${numbers.size}`;
    numbers.set(text, number);
    return number;
  };
};

const setOf = (texts: ReadonlyArray<string>): string => [...new Set(texts)].sort().join(" ");

/** Return the shape of what reads each step: equal for steps whose readers look alike, at any distance. */
const shapesOf = (steps: ReadonlyArray<Step>, { readers }: Links): Map<string, string> => {
  const shapes = new Map<string, string>();
  const number = numbering();
  for (const { task_id: id } of [...steps].reverse()) {
    shapes.set(id, number(setOf((readers.get(id) ?? []).map((reader) => shapes.get(reader) ?? ""))));
  }
  return shapes;
};

const bundle = (steps: ReadonlyArray<Step>, { inputs, readers }: Links, shapes?: Map<string, string>): Array<Bundle> => {
  const members = new Map<string, Array<string>>();
  const blockOf = new Map<string, string>();
  const number = numbering();
  // A plan lists every step after those that it reads.
  for (const { task_id: id } of steps) {
    const read = inputs.get(id) ?? [];
    const key =
      shapes === undefined
        ? `${setOf(read)}|${setOf(readers.get(id) ?? [])}`
        : `${setOf(read.map((input) => blockOf.get(input) ?? ""))}|${shapes.get(id)}`;
    const block = number(key);
    blockOf.set(id, block);
    members.set(block, [...(members.get(block) ?? []), id]);
  }
  return [...members].map(([id, ids]) => ({
    id,
    inputs: [...new Set(ids.flatMap((each) => inputs.get(each) ?? []).map((input) => blockOf.get(input) ?? ""))],
    members: ids,
  }));
};

/** Return blocks of steps: those with the same inputs and readers, or in very large plans those that look alike. */
export const bundlesOf = (steps: ReadonlyArray<Step>): Array<Bundle> => {
  const links = linksOf(steps);
  const fine = bundle(steps, links);
  return fine.length <= MAX_BLOCKS ? fine : bundle(steps, links, shapesOf(steps, links));
};

/** Return each step as a block of its own. */
export const singlesOf = (steps: ReadonlyArray<Step>): Array<Bundle> => {
  const { inputs } = linksOf(steps);
  return steps.map(({ task_id: id }) => ({ id, inputs: inputs.get(id) ?? [], members: [id] }));
};

/** Return how many columns a block of so many steps has: wider than high, since blocks stand below each other. */
export const columnsOf = (members: number): number => Math.max(1, Math.ceil(Math.sqrt(members)));
