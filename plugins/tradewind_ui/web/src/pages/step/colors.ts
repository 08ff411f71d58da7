import { useEffect, useState } from "react";

export type PlotColors = { readonly axis: string; readonly grid: string; readonly lines: readonly string[] };

const variable = (token: string) => `var(--chakra-colors-${token.replace(".", "-")})`;

/** Return the color of a token in the present theme, as a canvas wants it. */
const resolved = (probe: HTMLElement, token: string): string => {
  probe.style.color = variable(token);
  return getComputedStyle(probe).color;
};

const readColors = (): PlotColors => {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colors = {
    axis: resolved(probe, "fg.muted"),
    grid: resolved(probe, "border"),
    lines: ["blue.fg", "orange.fg"].map((token) => resolved(probe, token)),
  };
  probe.remove();
  return colors;
};

/** The colors of a plot; they change with the theme, which Airflow sets as a class of the document. */
export const usePlotColors = (): PlotColors => {
  const [colors, setColors] = useState(readColors);
  useEffect(() => {
    const observer = new MutationObserver(() => setColors(readColors()));
    observer.observe(document.documentElement, { attributeFilter: ["class", "data-theme", "style"] });
    return () => observer.disconnect();
  }, []);
  return colors;
};
