import { Tabs } from "@chakra-ui/react";
import { lazy, Suspense } from "react";

import { Empty } from "../../components/Empty";
import { Loading } from "../../components/Frame";
import { About } from "./About";
import { usePane } from "./context";
import { Folder } from "./Folder";
import { useDescription } from "./queries";
import { Refusal } from "./Refusal";
import { TITLES, viewsOf } from "./views";
import type { Description, ViewName } from "./views";

const ArraysView = lazy(() => import("./ArraysView"));
const FilesView = lazy(() => import("./FilesView"));
const ImageView = lazy(() => import("./ImageView"));
const MarkdownView = lazy(() => import("./MarkdownView"));
const RowsView = lazy(() => import("./RowsView"));
const TextView = lazy(() => import("./TextView"));

const View = ({ description, view }: { readonly description: Description; readonly view: ViewName }) => {
  switch (view) {
    case "arrays":
      return <ArraysView description={description} />;
    case "entries":
      return <Folder />;
    case "files":
      return <FilesView description={description} />;
    case "image":
      return <ImageView />;
    case "markdown":
      return <MarkdownView />;
    case "text":
      return <TextView />;
    default:
      return <RowsView description={description} view={view} />;
  }
};

/** A path, in the way that the address names or that fits it best. */
export const Shown = () => {
  const { pane, update } = usePane();
  const found = useDescription(pane.path);
  const description = found.data;

  if (description === undefined) {
    return found.error ? <Refusal error={found.error} retry={found.refetch} /> : <Loading />;
  }
  const views = viewsOf(description);
  const view = views.find((each) => each === pane.view) ?? views[0];
  return (
    <>
      <About description={description} />
      {view === undefined ? (
        <Empty title="There is no view of such files">Download it to open it with a program of its own.</Empty>
      ) : (
        <Tabs.Root
          lazyMount
          onValueChange={({ value }) => update({ columns: undefined, filter: undefined, limit: undefined, sort: undefined, view: value })}
          size="sm"
          unmountOnExit
          value={view}
        >
          {views.length > 1 ? (
            <Tabs.List>
              {views.map((each) => (
                <Tabs.Trigger key={each} value={each}>
                  {TITLES[each]}
                </Tabs.Trigger>
              ))}
            </Tabs.List>
          ) : null}
          {views.map((each) => (
            <Tabs.Content key={each} px={0} tabIndex={-1} value={each}>
              <Suspense fallback={<Loading />}>
                <View description={description} view={each} />
              </Suspense>
            </Tabs.Content>
          ))}
        </Tabs.Root>
      )}
    </>
  );
};
