import { Box, Button, Checkbox, Heading, HStack, NativeSelect, SimpleGrid, Text } from "@chakra-ui/react";
import { lazy, Suspense, useMemo } from "react";
import { useSearchParams } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount, formatSince } from "../../components/format";
import type { Line } from "./curves";
import { useCurves, useVersions } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";
import { versionBefore } from "./versions";

const Plot = lazy(() => import("./Plot"));

const MAX_SHOWN = 4;
const NONE = "none";
type Curve = Schemas["Curve"];

/** Which curves are shown and beside which version, kept in the address. */
const useChoice = () => {
  const [parameters, setParameters] = useSearchParams();
  const change = (name: string, values: readonly string[]) =>
    setParameters((old) => {
      const next = new URLSearchParams(old);
      next.delete(name);
      values.forEach((value) => next.append(name, value));
      return next;
    });
  return {
    beside: parameters.get("beside") ?? undefined,
    isLog: parameters.get("scale") === "log",
    names: parameters.getAll("metric").slice(0, MAX_SHOWN),
    setBeside: (hash: string) => change("beside", [hash]),
    setLog: (isLog: boolean) => change("scale", isLog ? ["log"] : []),
    setNames: (names: readonly string[]) => change("metric", names),
  };
};

const One = ({
  curve,
  isLog,
  onHide,
  other,
  titles,
}: {
  readonly curve: Curve;
  readonly isLog: boolean;
  /** undefined for the only curve. */
  readonly onHide: (() => void) | undefined;
  readonly other?: Curve;
  readonly titles: readonly [string, string];
}) => {
  const lines = useMemo<Line[]>(
    () => [
      { ...curve, isMuted: false, label: titles[0] },
      ...(other === undefined ? [] : [{ ...other, isMuted: true, label: titles[1] }]),
    ],
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [curve, other, titles[0], titles[1]],
  );

  return (
    <Box minW={0}>
      <HStack justify="space-between" mb={1}>
        <Heading as="h3" overflowWrap="anywhere" size="sm">
          {curve.name}
        </Heading>
        {onHide === undefined ? undefined : (
          <Button aria-label={`Hide ${curve.name}`} onClick={onHide} size="2xs" variant="ghost">
            Hide
          </Button>
        )}
      </HStack>
      <Suspense fallback={<Loading />}>
        <Plot isLog={isLog} lines={lines} title={curve.name} />
      </Suspense>
    </Box>
  );
};

type Props = { readonly hash: string; readonly ids: Ids; readonly isActive: boolean };

/** Curves of the metrics file, beside those of the version before. */
export const Metrics = ({ hash, ids, isActive }: Props) => {
  const { beside, isLog, names, setBeside, setLog, setNames } = useChoice();
  const versions = useVersions(ids);
  const others = (versions.data?.versions ?? []).filter((version) => !version.is_this);
  const before = versionBefore(versions.data?.versions ?? []);
  const version = beside === NONE || beside === hash ? undefined : (beside ?? before?.hash);
  const mine = useCurves(ids, names, isActive);
  const shown = mine.data?.curves.map(({ name }) => name) ?? [];
  const theirs = useCurves(ids, shown, false, shown.length > 0 && version !== undefined ? version : null);
  if (mine.error !== null) {
    return (
      <Section title="Metrics">
        <Problem error={mine.error} />
      </Section>
    );
  }
  if (mine.data === undefined || mine.data === null) {
    return (
      <Section title="Metrics">
        {mine.data === undefined ? <Loading /> : <Text color="fg.muted">This version has no metrics yet.</Text>}
      </Section>
    );
  }
  const { curves, last_at, last_step, names: all, sampled } = mine.data;
  const isPair = version !== undefined;
  const more = all.filter((name) => !shown.includes(name));

  return (
    <Section
      aside={
        <HStack flexWrap="wrap" gap={3}>
          <Checkbox.Root checked={isLog} onCheckedChange={({ checked }) => setLog(checked === true)} size="sm">
            <Checkbox.HiddenInput />
            <Checkbox.Control />
            <Checkbox.Label>Logarithmic</Checkbox.Label>
          </Checkbox.Root>
          <NativeSelect.Root size="sm" width="56">
            <NativeSelect.Field
              aria-label="Compare with version"
              onChange={(event) => setBeside(event.currentTarget.value)}
              value={version ?? NONE}
            >
              <option value={NONE}>No other version</option>
              {others.map(({ differs, hash: other, made_at }) => (
                <option key={other} value={other}>
                  {[other, differs, typeof made_at === "number" ? formatSince(made_at) : ""].filter(Boolean).join(", ")}
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
          {more.length === 0 || shown.length >= MAX_SHOWN ? undefined : (
            <NativeSelect.Root size="sm" width="56">
              <NativeSelect.Field
                aria-label="Add a metric"
                onChange={(event) => setNames([...shown, event.currentTarget.value])}
                value=""
              >
                <option value="">Add a metric</option>
                {more.map((name) => (
                  <option key={name} value={name}>
                    {name}
                  </option>
                ))}
              </NativeSelect.Field>
              <NativeSelect.Indicator />
            </NativeSelect.Root>
          )}
        </HStack>
      }
      title="Metrics"
    >
      <Text aria-live="off" color="fg.muted" fontSize="sm" mb={3}>
        {typeof last_step === "number" ? `Up to step ${formatCount(last_step)} (the first is 0)` : "No step yet"}
        {typeof last_at === "number" ? `, ${formatSince(last_at)}` : ""}
        {isPair ? `. Dashed: version ${version}.` : "."}
        {sampled ? " The file is long: between its ranges, points are missing." : ""}
      </Text>
      {curves.length === 0 ? <Text color="fg.muted">No number was measured yet.</Text> : undefined}
      <SimpleGrid columns={curves.length > 1 ? { base: 1, xl: 2 } : 1} gap={6}>
        {curves.map((curve) => (
          <One
            curve={curve}
            isLog={isLog}
            key={curve.name}
            onHide={shown.length > 1 ? () => setNames(shown.filter((name) => name !== curve.name)) : undefined}
            other={isPair ? theirs.data?.curves.find(({ name }) => name === curve.name) : undefined}
            titles={[hash, version ?? ""]}
          />
        ))}
      </SimpleGrid>
    </Section>
  );
};
