"""What Ray calls the hosts of TPU slices: the labels of their nodes, and the resource of which a slice has one."""

from __future__ import annotations

import re
from typing import Final

RAY_LABELS: Final = "ray.io/"
"""What the labels begin with that Ray itself gives."""
TPU_LABELS: Final = "ray.io/tpu-"
NODE_ID_LABEL: Final = "ray.io/node-id"
SLICE_NAME_LABEL: Final = "ray.io/tpu-slice-name"
WORKER_ID_LABEL: Final = "ray.io/tpu-worker-id"
"""The number of a host in its slice."""
POD_TYPE_LABEL: Final = "ray.io/tpu-pod-type"
"""The slice type, such as ``v4-16``."""
TOPOLOGY_LABEL: Final = "ray.io/tpu-topology"
ACCELERATOR_TYPE_LABEL: Final = "ray.io/accelerator-type"

_HEAD_RESOURCE: Final = re.compile(r"TPU-.+-head")


def head_resource(slice_type: str) -> str:
    """What worker 0 of a slice of this type has one of."""
    return f"TPU-{slice_type}-head"


def is_head_resource(name: str) -> bool:
    """Whether ``head_resource`` gives this for some type."""
    return bool(_HEAD_RESOURCE.fullmatch(name))
