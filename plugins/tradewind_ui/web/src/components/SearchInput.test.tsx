import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";

import { SearchInput } from "./SearchInput";

it("keeps what is typed while its text is sent, and follows other changes", async () => {
  const onChange = vi.fn();
  const field = (value: string) => (
    <ChakraProvider value={defaultSystem}>
      <SearchInput aria-label="Name" onChange={onChange} value={value} />
    </ChakraProvider>
  );
  const { rerender } = render(field(""));
  const input = screen.getByLabelText<HTMLInputElement>("Name");
  const user = userEvent.setup();
  await user.type(input, "ab");
  await waitFor(() => expect(onChange.mock.calls).toEqual([["ab"]]));
  await user.type(input, "c");
  rerender(field("ab"));
  expect([input.value, document.activeElement]).toEqual(["abc", input]);
  await waitFor(() => expect(onChange.mock.lastCall).toEqual(["abc"]));
  rerender(field("abc"));
  rerender(field(""));
  expect(input.value).toBe("");
}, 30_000);
