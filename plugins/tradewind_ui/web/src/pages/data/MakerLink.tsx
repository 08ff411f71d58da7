import { Badge, HStack, Link as ChakraLink, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { idPart } from "../../components/links";
import { StateBadge, isState } from "../../components/states";

type MadeBy = Schemas["MadeBy"];

/** Return the address of the page of the task, or else of the run, that made an output. */
export const makerHref = ({ dag_id: dag, run_id: run, task_id: task }: MadeBy): string | undefined => {
  if (!dag || !run) {
    return undefined;
  }
  const base = `/dags/${idPart(dag)}/runs/${idPart(run)}`;
  return task ? `${base}/tasks/${idPart(task)}/plugin/tradewind_step` : `${base}/plugin/tradewind_plan`;
};

export const makerText = ({ dag_id: dag, run_id: run, script, task_id: task }: MadeBy): string =>
  dag ? [dag, task ?? run].filter(Boolean).join(" · ") : (script ?? "");

/** The task or script that made an output, as a link where there is a page about it. */
export const MakerLink = ({ made }: { readonly made: MadeBy }) => {
  const href = makerHref(made);

  return href === undefined ? (
    <Text as="span">{makerText(made)}</Text>
  ) : (
    <ChakraLink asChild color="fg.info">
      <Link title={`Run ${made.run_id ?? ""} of ${made.dag_id ?? ""}`} to={href}>
        {makerText(made)}
      </Link>
    </ChakraLink>
  );
};

/** Step, version and state of an output. Beside a name, it is what gives way: the name tells versions apart. */
export const OutputTag = ({ made }: { readonly made: MadeBy }) => (
  <HStack as="span" display="inline-flex" gap={1} minW="0">
    <Badge alignContent="center" colorPalette="purple" display="inline-block" minW="0" title={made.version ?? undefined} truncate>
      output{made.step ? ` of ${made.step}` : ""}
    </Badge>
    {made.state && isState(made.state) ? <StateBadge state={made.state} /> : null}
    {made.problem ? (
      <Badge colorPalette="orange" title={made.problem}>
        unreadable record
      </Badge>
    ) : null}
  </HStack>
);
