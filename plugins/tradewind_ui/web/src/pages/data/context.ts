import { createContext, useContext } from "react";

import type { Address, Pane } from "./address";

/** What the parts of a pane use: how it is shown, and where its links lead. */
export type PaneContext = {
  readonly address: Address;
  readonly index: number;
  /** Whether another pane has room. */
  readonly hasRoom: boolean;
  /** The address of this page with another path in this pane. */
  readonly hrefOf: (path: string) => string;
  /** Opens a path in this pane; `focus` is the name that then has the focus in a folder. */
  readonly open: (path: string, focus?: string) => void;
  readonly openBeside: (path: string) => void;
  readonly pane: Pane;
  readonly roots: readonly string[];
  readonly close: () => void;
  /** Terms to mark in texts. */
  readonly terms: readonly string[];
  readonly update: (change: Partial<Pane>) => void;
  /** The entry that gets the focus when the folder appears; undefined leaves the focus where it is. */
  readonly wantedFocus: string | undefined;
};

export const PaneState = createContext<PaneContext | undefined>(undefined);

export const usePane = (): PaneContext => {
  const state = useContext(PaneState);
  if (state === undefined) {
    throw new Error("A part of the data page stands outside of a pane.");
  }
  return state;
};
