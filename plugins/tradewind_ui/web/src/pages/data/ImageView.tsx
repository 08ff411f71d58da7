import { Box } from "@chakra-ui/react";
import { useState } from "react";

import { usePane } from "./context";
import { nameOf } from "./paths";
import { fileUrl, useImageProblem } from "./queries";
import { Refusal } from "./Refusal";

/** A picture, at most as wide as the pane. */
export const ImageView = () => {
  const { pane } = usePane();
  const [hasFailed, setHasFailed] = useState(false);
  const problem = useImageProblem(pane.path, hasFailed);

  if (hasFailed && !problem.isFetching) {
    return <Refusal error={problem.error ?? new Error("The browser cannot show this picture; it may be damaged.")} retry={problem.refetch} />;
  }
  return (
    <Box borderWidth="1px" maxH="75vh" overflow="auto" p={2} rounded="md" tabIndex={0}>
      <img alt={nameOf(pane.path)} onError={() => setHasFailed(true)} src={fileUrl("image", pane.path)} style={{ maxWidth: "100%" }} />
    </Box>
  );
};

export default ImageView;
