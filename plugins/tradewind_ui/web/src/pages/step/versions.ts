import type { Schemas } from "../../api/client";

export type Version = Schemas["StoredVersion"];

/** Return the newest version that was made before this one; undefined if all others are later. They come newest first. */
export const versionBefore = (versions: readonly Version[]): Version | undefined => {
  const own = versions.find((version) => version.is_this)?.made_at ?? Number.POSITIVE_INFINITY;
  return versions.find(({ is_this, made_at }) => !is_this && typeof made_at === "number" && made_at < own);
};
