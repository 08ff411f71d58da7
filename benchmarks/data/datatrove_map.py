"""``python datatrove_map.py IN OUT WORKERS``: this benchmark's map with datatrove, in an environment of its own."""

from __future__ import annotations

import os
import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.formatters.base import BaseFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


class Upper(BaseFormatter):
    """Write a text in capitals."""

    name = "upper"

    def format(self, text: str) -> str:
        return text.upper()


if __name__ == "__main__":
    source, target, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    steps = [
        JsonlReader(source),
        LambdaFilter(lambda document: document.metadata["score"] > 0.3),
        Upper(),
        JsonlWriter(target, compression="gzip"),
    ]
    LocalPipelineExecutor(steps, tasks=len(os.listdir(source)), workers=workers, logging_dir=f"{target}-logs").run()
