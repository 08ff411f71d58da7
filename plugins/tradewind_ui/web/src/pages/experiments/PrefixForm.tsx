import { Button, Field, HStack, Input } from "@chakra-ui/react";
import { useId, useState } from "react";
import type { FormEvent } from "react";

type Props = {
  readonly onChange: (prefix: string) => void;
  readonly prefix: string;
  readonly roots: readonly string[];
};

/** Chooses the folder whose outputs are shown; the roots of the deployment are offered. */
export const PrefixForm = ({ onChange, prefix, roots }: Props) => {
  const [typed, setTyped] = useState(prefix);
  const list = useId();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onChange(typed.trim());
  };

  return (
    <form onSubmit={submit}>
      <HStack align="end" gap={2}>
        <Field.Root maxW="620px">
          <Field.Label>Prefix: outputs below this folder</Field.Label>
          <Input
            fontFamily="mono"
            list={list}
            onChange={(event) => setTyped(event.target.value)}
            size="sm"
            spellCheck={false}
            value={typed}
          />
        </Field.Root>
        <datalist id={list}>
          {roots.map((root) => (
            <option key={root} value={root} />
          ))}
        </datalist>
        <Button size="sm" type="submit" variant="outline">
          Show
        </Button>
      </HStack>
    </form>
  );
};
