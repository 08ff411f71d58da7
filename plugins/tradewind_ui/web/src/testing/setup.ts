import { cleanup, configure } from "@testing-library/react";
import { afterEach } from "vitest";

// A machine that does other work needs seconds to draw a page.
configure({ asyncUtilTimeout: 20_000 });
afterEach(cleanup);
