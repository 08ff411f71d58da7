import type { Plugin } from "vite";

/** Modules that Airflow's own page has loaded, by the global name under which it shares each. */
export const SHARED: Record<string, string> = {
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
  react: "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};

const PREFIX = "\0airflow:";
const IMPORTER = "?by=";
const IDENTIFIER = /^[A-Za-z_$][\w$]*$/u;

/**
 * Resolve the shared modules to Airflow's globals, so that the bundle has its theme, and no second React.
 *
 * Each importer has a copy of its own with the names that it uses. A common copy would be a chunk that the entry waits
 * for: one more request, and its discovery, while Airflow draws its own page.
 */
export const airflowGlobals = (): Plugin => ({
  apply: "build",
  enforce: "pre",
  load: async (id) => {
    if (!id.startsWith(PREFIX)) {
      return null;
    }
    const [name = ""] = id.slice(PREFIX.length).split(IMPORTER);
    const names = Object.keys((await import(name)) as object).filter(
      (each) => IDENTIFIER.test(each) && each !== "default" && each !== "module.exports",
    );
    const shared = `globalThis.${SHARED[name]}`;
    const exports = names.map((each) => `export const ${each} = shared.${each};`);
    return { code: [`const shared = ${shared};`, "export default shared;", ...exports].join("\n"), moduleSideEffects: false };
  },
  name: "airflow-globals",
  resolveId: (id, importer = "") => (id in SHARED ? `${PREFIX}${id}${IMPORTER}${importer}` : null),
});
