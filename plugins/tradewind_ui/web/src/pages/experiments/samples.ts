/** Answers of the server for tests. */
import type { Schemas } from "../../api/client";
import type { OutputRow } from "./rows";

export const outputRow = (step: string, version = "1", experiment = "nightly"): OutputRow => ({
  details: { commit: null, files: 1, problem: null, result: "", size_bytes: 2048 },
  output: {
    experiment,
    is_pinned: version === "2",
    status: {
      attempt: 1,
      dag: experiment,
      job: "",
      map_index: -1,
      output_path: `/store/${step}-${version}`,
      producer: experiment === "" ? "" : `run manual__1+0 of ${experiment}`,
      run: experiment === "" ? "" : "manual__1+0",
      script: "",
      since: 1e9,
      state: "finished",
      task: step,
      version,
    },
    step,
    version,
  },
  versions: 1,
});

export const score = (changes: Partial<Schemas["BoardScore"]>): Schemas["BoardScore"] => ({
  commit: null,
  coverage: 1,
  documents: 100,
  evaluation: "harness",
  high: 0.6,
  label: "measured",
  low: 0.4,
  model: "tiny",
  output_path: "/store/measured",
  problem: "",
  samples: null,
  scored: 100,
  started_at: 1e9,
  status: "succeeded",
  value: 0.5,
  ...changes,
});
