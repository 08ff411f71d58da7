"""Stand-in for Ray's launcher, as Google Cloud sees it: run as ``fake_launcher.py up OPTIONS FILE``.

It creates a head as Ray does, and labels it. With the variable ``RAYLIKE_FAILS`` it fails after it has created the
head. It writes its arguments to the file in ``RAYLIKE_LOG``.
"""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

file = Path(sys.argv[-1]).read_text()
name, project, zone, config = (
    re.search(rf'{key}: "(.*)"', file)[1] for key in ("cluster_name", "project_id", "availability_zone", "config")
)
place = f"{os.environ['TRADEWIND_COMPUTE_ENDPOINT']}/compute/v1/projects/{project}/zones/{zone}"
query = quote(f"(labels.ray-cluster-name = {name}) AND (labels.ray-node-type = head) AND (status = RUNNING)")


def ask(path: str = "", body: object = None, kind: str = "instances") -> dict:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{place}/{kind}{path}", data, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)
    except HTTPError as error:
        fail(json.load(error)["error"]["message"])


def fail(why: str) -> NoReturn:
    print(f"Error: {why}", flush=True)
    sys.exit(1)


with Path(os.environ["RAYLIKE_LOG"]).open("a") as log:
    version = dict(os.environ)["RAY_UP_enable_autoscaler_v2"]
    log.write(f"{version} {' '.join(sys.argv[1:-1])}\n")
if not ask(f"?filter={query}").get("items"):
    labels = {"ray-cluster-name": name, "ray-node-type": "head", "tradewind-config": config}
    disk = f"projects/{project}/zones/{zone}/disks/ray-{name}-state"
    made = f"ray-{name}-head-{time.time_ns() % 10**8:08}-compute"
    done = ask(body={"name": made, "labels": labels, "disks": [{"source": disk, "autoDelete": False}]})
    while done["status"] != "DONE":
        done = ask(f"/{done['name']}", kind="operations")
    if "error" in done:
        fail(done["error"]["errors"][0]["message"])
    if os.environ.get("RAYLIKE_FAILS"):
        fail("Failed to setup head node.")
while not (found := ask(f"?filter={query}").get("items")):
    time.sleep(0.02)
(head,) = found
labels = {**head["labels"], "ray-node-status": "up-to-date"}
ask(f"/{head['name']}/setLabels", {"labels": labels, "labelFingerprint": head["labelFingerprint"]})
print("Ray runtime started.", flush=True)
