import { Input } from "@chakra-ui/react";
import { useEffect, useState } from "react";

type Props = {
  readonly onChange: (text: string) => void;
  readonly placeholder?: string;
  readonly value: string;
};

const PAUSE_MS = 300;

/** A field whose text counts when the user pauses, since each text is a request. */
export const SearchInput = ({ onChange, placeholder, value }: Props) => {
  const [typed, setTyped] = useState(value);
  const [known, setKnown] = useState(value);
  // The address has changed by other means, such as the browser's way back.
  if (known !== value) {
    setKnown(value);
    setTyped(value);
  }
  useEffect(() => {
    if (typed === value) {
      return undefined;
    }
    const timer = setTimeout(() => onChange(typed), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [onChange, typed, value]);

  return (
    <Input
      onChange={(event) => setTyped(event.target.value)}
      placeholder={placeholder}
      size="sm"
      type="search"
      value={typed}
    />
  );
};
