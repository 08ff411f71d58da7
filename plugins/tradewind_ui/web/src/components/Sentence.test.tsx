import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render } from "@testing-library/react";
import { expect, it } from "vitest";

import { Sentence, plainSentence } from "./Sentence";

it.each([
  ["never ran", "never ran", []],
  ["seed 1 → 2 in input `raw`, since version `5920e8`", "seed 1 → 2 in input raw, since version 5920e8", ["raw", "5920e8"]],
  ["`a`", "a", ["a"]],
  ["one ` alone", "one ` alone", []],
])("shows %j as %j", (text, plain, codes) => {
  const { container } = render(
    <ChakraProvider value={defaultSystem}>
      <Sentence text={text} />
    </ChakraProvider>,
  );
  expect(container.textContent).toBe(plain);
  expect([...container.querySelectorAll("code")].map((code) => code.textContent)).toEqual(codes);
  expect(plainSentence(text)).toBe(plain);
});
