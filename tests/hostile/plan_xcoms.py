"""XComs of a run that are plans, that look like plans but are invalid, and that are something else."""

from __future__ import annotations

import json
from typing import Any

from tradewind.plans.plan import Decision, Plan, PlannedStep

LINE = PlannedStep("train", "train/x", "abc123", "/store/train/x-abc123", Decision.RUN, "not made yet").to_json()
GOOD: dict[str, Any] = Plan("/store", (PlannedStep("t", "train/x", "abc123", "/s/x", Decision.RUN, "new"),)).to_json()
CLASS = {"__classname__": "subprocess.Popen", "__version__": 1, "__data__": {"args": ["touch", "/tmp/x"]}}
MALFORMED = {
    "steps are a text": {**GOOD, "steps": "x"},
    "steps are a number": {**GOOD, "steps": 7},
    "steps are nothing": {**GOOD, "steps": None},
    "steps are an object": {**GOOD, "steps": {"a": LINE}},
    "a step is a text": {**GOOD, "steps": ["x"]},
    "a step is a list": {**GOOD, "steps": [[LINE]]},
    "a step is nothing": {**GOOD, "steps": [None]},
    "a step is empty": {**GOOD, "steps": [{}]},
    "no prefix": {"steps": [LINE]},
    "prefix is a number": {**GOOD, "prefix": 7},
    "prefix is nothing": {**GOOD, "prefix": None},
    "no such decision": {**GOOD, "steps": [{**LINE, "decision": "ERASE"}]},
    "decision is a list": {**GOOD, "steps": [{**LINE, "decision": ["RUN"]}]},
    "decision is nothing": {**GOOD, "steps": [{**LINE, "decision": None}]},
    "name is a list": {**GOOD, "steps": [{**LINE, "name": ["a"]}]},
    "name is missing": {**GOOD, "steps": [{key: value for key, value in LINE.items() if key != "name"}]},
    "hash is a number": {**GOOD, "steps": [{**LINE, "hash": 7}]},
    "path is an object": {**GOOD, "steps": [{**LINE, "output_path": {"a": 1}}]},
    "path is nothing": {**GOOD, "steps": [{**LINE, "output_path": None}]},
    "reason is a number": {**GOOD, "steps": [{**LINE, "reason": 1.5}]},
    "attempt is a text": {**GOOD, "steps": [{**LINE, "attempt": "many"}]},
    "warnings are a number": {**GOOD, "warnings": 7},
    "a warning is a list": {**GOOD, "warnings": [["x"]]},
    "estimate is a list": {**GOOD, "estimate": ["x"]},
    "inputs are a text": {**GOOD, "steps": [{**LINE, "inputs": "raw"}]},
    "an input is a number": {**GOOD, "steps": [{**LINE, "inputs": [7]}]},
    "changed inputs are an object": {**GOOD, "steps": [{**LINE, "changed_inputs": {"a": 1}}]},
    "producer's run is a number": {**GOOD, "steps": [{**LINE, "producer_run": 7}]},
}
"""XComs that look like plans but are invalid."""
HARMLESS = {
    "nothing": None,
    "a text": "plan",
    "a list": [1, 2],
    "a number": 1,
    "an empty object": {},
    "a class": CLASS,
    "classes in lists": [[CLASS]],
    "a text of JSON": json.dumps(CLASS),
}
"""XComs that do not resemble a plan."""
