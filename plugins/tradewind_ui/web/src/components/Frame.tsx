import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Component, Suspense } from "react";
import type { ReactNode } from "react";

import { Box, Center, Spinner } from "@chakra-ui/react";

import { Problem } from "./Problem";

/** The queries of all pages. */
export const client = new QueryClient({
  defaultOptions: { queries: { refetchOnWindowFocus: false, retry: false, staleTime: 5000 } },
});

type Caught = { readonly error?: Error };

/** Shows an error of a page in its place, so that Airflow's own page stays. */
class Boundary extends Component<{ readonly children: ReactNode }, Caught> {
  public state: Caught = {};

  public static getDerivedStateFromError = (error: Error): Caught => ({ error });

  public render() {
    return this.state.error === undefined ? this.props.children : <Problem error={this.state.error} />;
  }
}

export const Loading = () => (
  <Center p={8}>
    <Spinner aria-label="Loading" role="status" />
  </Center>
);

/** What each page of the plugin stands in: its queries, its errors, and a sign that it loads. */
export const Frame = ({ children, loading = <Loading /> }: { readonly children: ReactNode; readonly loading?: ReactNode }) => (
  <QueryClientProvider client={client}>
    {/* Tests find the plugin's part of Airflow's page by this name; the box itself has no layout. */}
    <Box data-tradewind="" display="contents">
      <Boundary>
        <Suspense fallback={loading}>{children}</Suspense>
      </Boundary>
    </Box>
  </QueryClientProvider>
);
