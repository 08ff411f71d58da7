export type Crumb = { readonly name: string; readonly path: string };

const withoutSlash = (path: string) => path.replace(/(?<=[^/:])\/+$/u, "");

/** Return the root that a path is below; the longest, since roots may be in each other. */
export const rootOf = (path: string, roots: readonly string[]): string | undefined =>
  [...roots]
    .map(withoutSlash)
    .sort((a, b) => b.length - a.length)
    .find((root) => path === root || path.startsWith(root.endsWith("/") ? root : `${root}/`));

/** Return the folders from the root down to the path. Without a root, the path is one crumb. */
export const crumbsOf = (path: string, roots: readonly string[]): readonly Crumb[] => {
  const clean = withoutSlash(path);
  const root = rootOf(clean, roots);
  if (root === undefined) {
    return clean === "" ? [] : [{ name: clean, path: clean }];
  }
  const names = clean.slice(root.length).split("/").filter((name) => name !== "");
  const base = root.endsWith("/") ? root : `${root}/`;
  return [
    { name: root, path: root },
    ...names.map((name, at) => ({ name, path: base + names.slice(0, at + 1).join("/") })),
  ];
};

/** Return the folder above; empty for a root, above which is the list of roots. */
export const parentOf = (path: string, roots: readonly string[]): string => crumbsOf(path, roots).at(-2)?.path ?? "";

export const nameOf = (path: string): string => withoutSlash(path).split("/").at(-1) ?? path;

/** Resolve a relative address in a document to a path; undefined if it leads elsewhere, or above the store. */
export const resolvePath = (document: string, relative: string): string | undefined => {
  const target = relative.split(/[?#]/u)[0] ?? "";
  if (target === "" || target.startsWith("/") || /^[a-z][a-z0-9+.-]*:/iu.test(target)) {
    return undefined;
  }
  const [, scheme = "", rest = ""] = /^([a-z0-9]+:\/\/)?(.*)$/iu.exec(document) ?? [];
  const parts = rest.split("/").slice(0, -1);
  for (const part of target.split("/")) {
    if (part === "..") {
      if (parts.length <= 1) {
        return undefined;
      }
      parts.pop();
    } else if (part !== "." && part !== "") {
      parts.push(part);
    }
  }
  try {
    return scheme + decodeURIComponent(parts.join("/"));
  } catch {
    return undefined;
  }
};
