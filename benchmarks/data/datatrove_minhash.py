"""What datatrove's Python runs: its MinHash signatures of the texts in a file, and the CPU seconds that they take.

``PYTHON datatrove_minhash.py TEXTS BUCKETS HASHES``, with one JSON text in each line of TEXTS.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature


def main(texts: str, buckets: str, hashes: str) -> None:
    """Print the seconds."""
    with open(texts, encoding="utf-8") as lines:
        documents = [Document(text=json.loads(line), id=str(number)) for number, line in enumerate(lines)]
    with tempfile.TemporaryDirectory() as folder:
        config = MinhashConfig(num_buckets=int(buckets), hashes_per_bucket=int(hashes))
        step = MinhashDedupSignature(folder, config)
        step.get_shingles(documents[0].text)  # its splitter of words is loaded then
        begun = time.process_time()
        step.run(iter(documents))
        print(time.process_time() - begun)


if __name__ == "__main__":
    main(*sys.argv[1:])
