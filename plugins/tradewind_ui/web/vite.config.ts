import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

import { airflowGlobals } from "./airflow-globals.ts";

export default defineConfig({
  // Chunks load from where the entry came from, whatever path Airflow is behind.
  base: "./",
  build: {
    assetsInlineLimit: 0,
    // Styles of a view are put into the page by its script: Airflow loads one module and no style sheet.
    cssCodeSplit: true,
    emptyOutDir: true,
    outDir: "../static",
    rollupOptions: {
      input: "src/main.tsx",
      output: {
        assetFileNames: "[name]-[hash][extname]",
        chunkFileNames: "[name]-[hash].js",
        entryFileNames: "main.js",
      },
      preserveEntrySignatures: false,
      treeshake: { propertyReadSideEffects: false },
    },
    target: "es2022",
  },
  plugins: [airflowGlobals(), react()],
  test: {
    environment: "jsdom",
    globals: false,
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["src/testing/setup.ts"],
    testTimeout: 60_000,
  },
});
