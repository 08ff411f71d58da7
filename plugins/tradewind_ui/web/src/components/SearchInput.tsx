import { Input } from "@chakra-ui/react";
import type { InputProps } from "@chakra-ui/react";
import { useEffect, useState } from "react";

type Props = Omit<InputProps, "onChange" | "value"> & {
  readonly onChange: (text: string) => void;
  readonly value: string;
};

const PAUSE_MS = 300;

/** A field whose text counts when the user pauses, since each text costs a request or a new view. */
export const SearchInput = ({ onChange, value, ...props }: Props) => {
  const [typed, setTyped] = useState(value);
  const [known, setKnown] = useState(value);
  const [sent, setSent] = useState(value);
  if (known !== value) {
    setKnown(value);
    // Unless it is this field's own text, which comes late, the address has changed by other means, such as Back.
    if (value !== sent) {
      setTyped(value);
      setSent(value);
    }
  }
  useEffect(() => {
    if (typed === sent) {
      return undefined;
    }
    const timer = setTimeout(() => {
      setSent(typed);
      onChange(typed);
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [onChange, sent, typed]);

  return <Input size="sm" {...props} onChange={(event) => setTyped(event.target.value)} type="search" value={typed} />;
};
