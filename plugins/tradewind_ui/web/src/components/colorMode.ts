import { useSyncExternalStore } from "react";

const subscribe = (changed: () => void) => {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["class"] });
  return () => observer.disconnect();
};

const colorMode = () => (document.documentElement.classList.contains("dark") ? "dark" : "light");

/** The mode of Airflow's page, which is a class of the document, also where the user leaves it to the system. */
export const useColorMode = (): "dark" | "light" => useSyncExternalStore(subscribe, colorMode);
