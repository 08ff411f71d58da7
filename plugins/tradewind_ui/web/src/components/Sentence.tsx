import { Code } from "@chakra-ui/react";
import { Fragment } from "react";

const TICKED = /`([^`]+)`/gu;

/** A sentence of the package, which marks names by backticks: they are shown as code. */
export const Sentence = ({ text }: { readonly text: string }) =>
  text.split(TICKED).map((part, index) => (
    <Fragment key={index}>
      {index % 2 === 0 ? (
        part
      ) : (
        <Code display="inline" fontSize="inherit" overflowWrap="anywhere" whiteSpace="inherit">
          {part}
        </Code>
      )}
    </Fragment>
  ));

/** The same where only text can stand, such as in a tooltip. */
export const plainSentence = (text: string): string => text.replaceAll(TICKED, "$1");
