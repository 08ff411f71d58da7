import { Badge, Link } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

import type { Column } from "../../components/DataTable";
import { formatDuration, formatSince, formatTime } from "../../components/format";
import { taskLink } from "./links";
import type { Job, Resource, Stalled, Wait } from "./queries";
import { MEANINGS } from "./SliceBlocks";

const PALETTES: Record<Resource["health"], string> = { coming: "blue", gone: "red", incomplete: "orange", ready: "green" };

const notesOf = ({ health, is_current: isCurrent, is_reserved: isReserved }: Resource): string =>
  [isReserved ? "reserved" : "", isCurrent === false ? "of an earlier file" : "", health === "incomplete" ? MEANINGS[health] : ""]
    .filter(Boolean)
    .join(", ");

export const RESOURCES: readonly Column<Resource>[] = [
  { header: "Kind", id: "kind", value: (line) => line.kind, width: 90 },
  { header: "Name", id: "name", value: (line) => line.name, width: 180 },
  {
    cell: (line) => <Badge colorPalette={PALETTES[line.health]}>{line.state}</Badge>,
    header: "State",
    id: "state",
    value: (line) => line.state,
    width: 120,
  },
  {
    cell: (line) => (line.age_s === null || line.age_s === undefined ? "" : formatDuration(line.age_s)),
    end: true,
    header: "Age",
    id: "age",
    value: (line) => line.age_s,
    width: 90,
  },
  {
    cell: (line) => (line.in_ray === null || line.in_ray === undefined ? "" : `${line.in_ray} of ${line.hosts ?? "?"}`),
    end: true,
    header: "Hosts in Ray",
    id: "in_ray",
    value: (line) => line.in_ray,
    width: 110,
  },
  { header: "Notes", id: "notes", value: notesOf, width: 220 },
];

const Task = ({ of, text }: { readonly of: Parameters<typeof taskLink>[0]; readonly text: string }) => {
  const link = taskLink(of);
  return link === undefined ? (
    text
  ) : (
    <Link asChild colorPalette="blue" title={text} variant="underline">
      <RouterLink to={link}>{text}</RouterLink>
    </Link>
  );
};

const Since = ({ at }: { readonly at: number | null | undefined }) =>
  at === null || at === undefined ? null : <span title={formatTime(at)}>{formatSince(at)}</span>;

export const JOBS: readonly Column<Job>[] = [
  { header: "Job", id: "job", value: (job) => job.job, width: 170 },
  {
    cell: (job) => <Badge colorPalette={job.status === "PENDING" ? "orange" : "blue"}>{job.status}</Badge>,
    header: "State",
    id: "status",
    value: (job) => job.status,
    width: 110,
  },
  { cell: (job) => <Task of={job} text={job.owner} />, header: "Whose", id: "owner", value: (job) => job.owner, width: 300 },
  { header: "Step", id: "step", value: (job) => job.step, width: 150 },
  {
    cell: (job) => <Since at={job.submitted_at} />,
    end: true,
    header: "Submitted",
    id: "submitted_at",
    value: (job) => job.submitted_at,
    width: 140,
  },
];

export const WAITS: readonly Column<Wait>[] = [
  { header: "Job", id: "job", value: (wait) => wait.job, width: 170 },
  { cell: (wait) => <Task of={wait} text={wait.owner} />, header: "Whose", id: "owner", value: (wait) => wait.owner, width: 280 },
  { end: true, header: "Parts", id: "count", value: (wait) => wait.count, width: 80 },
  { header: "Kind", id: "kind", value: (wait) => wait.kind, width: 140 },
  { header: "Each needs", id: "resources", value: (wait) => wait.resources, width: 260 },
  {
    cell: (wait) => <Since at={wait.since} />,
    end: true,
    header: "Since",
    id: "since",
    value: (wait) => wait.since,
    width: 140,
  },
];

export const STALLED: readonly Column<Stalled>[] = [
  { cell: (step) => <Task of={step} text={step.step} />, header: "Step", id: "step", value: (step) => step.step, width: 280 },
  {
    cell: (step) => `no ${step.what} for ${formatDuration(step.seconds)}`,
    header: "Since",
    id: "seconds",
    value: (step) => step.seconds,
    width: 180,
  },
  { cell: (step) => formatDuration(step.limit_s), end: true, header: "Limit", id: "limit", value: (step) => step.limit_s, width: 90 },
  { header: "Output", id: "output", value: (step) => step.output_path, width: 420 },
];
