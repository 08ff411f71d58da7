"""Fleet files for tests."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
SHIPPED: Final = REPOSITORY / "infra" / "fleet.yaml"
TEMPLATE: Final = REPOSITORY / "infra" / "cluster.yaml.j2"

HEAD: Final = """\
default_cluster: here
defaults:
  project: my-project
  head_service_account: head@my-project.iam.gserviceaccount.com
  worker_service_account: worker@my-project.iam.gserviceaccount.com
clusters:
  here:
    zone: us-central2-b
    generation: v4
    bucket: my-bucket
"""
"""A fleet of one cluster; its last line is line 10."""


def write_fleet(folder: Path, more: str = "", *, inside: bool = True) -> Path:
    """Write the template and a fleet file, with more fields of its cluster ``here`` or lines after it."""
    file = folder / "fleet.yaml"
    file.write_text(HEAD + (indent(more, "    ") if inside else more))
    (folder / "cluster.yaml.j2").write_text(TEMPLATE.read_text())
    return file


def many_clusters(count: int) -> str:
    """Return more clusters, as lines to append to ``HEAD``."""
    one = "  extra-{}: {{zone: us-east5-a, generation: v5p, bucket: my-bucket-5, slices: {{v5p-64: {{min: 4}}}}}}\n"
    return "".join(one.format(number) for number in range(count))
