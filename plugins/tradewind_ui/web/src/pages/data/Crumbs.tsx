import { Breadcrumb } from "@chakra-ui/react";
import { Fragment } from "react";

import { usePane } from "./context";
import { crumbsOf, nameOf } from "./paths";
import { PathLink } from "./PathLink";

/** The way from the list of roots down to the path. */
export const Crumbs = () => {
  const { pane, roots } = usePane();
  const crumbs = crumbsOf(pane.path, roots);

  return (
    <Breadcrumb.Root aria-label={`Folders above ${nameOf(pane.path)}`} size="sm">
      <Breadcrumb.List flexWrap="wrap">
        <Breadcrumb.Item>
          {pane.path === "" ? <Breadcrumb.CurrentLink>Data</Breadcrumb.CurrentLink> : <PathLink path="">Data</PathLink>}
        </Breadcrumb.Item>
        {crumbs.map(({ name, path }, at) => (
          <Fragment key={path}>
            <Breadcrumb.Separator />
            <Breadcrumb.Item>
              {at === crumbs.length - 1 ? (
                <Breadcrumb.CurrentLink overflowWrap="anywhere">{name}</Breadcrumb.CurrentLink>
              ) : (
                <PathLink focus={crumbs[at + 1]?.path} path={path}>
                  {name}
                </PathLink>
              )}
            </Breadcrumb.Item>
          </Fragment>
        ))}
      </Breadcrumb.List>
    </Breadcrumb.Root>
  );
};
