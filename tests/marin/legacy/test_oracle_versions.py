"""Steps rebuilt from the light classes get the versions that Marin's own executor recorded.

``oracle_versions.json`` holds a few of each kind; ``scripts/marin/versions.py`` does the same with all 2,967.
``published_versions.json`` holds the versions of 59 outputs that Marin published, in results of speedruns and in lists
of token caches, and the versions of their inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.marin.legacy.rebuilding import Rebuilt
from tradewind.steps import ExecutorStep, resolve

VERSIONS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "oracle_versions.json").read_text())
REBUILT = Rebuilt(VERSIONS)
PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published_versions.json").read_text())


def test_a_step_built_by_hand_has_the_recorded_version() -> None:
    versions = {key: _version_of(REBUILT.step(key)) for key in VERSIONS}
    recorded = {key: VERSIONS[key]["config"] for key in VERSIONS}
    assert {key: json.loads(text)["config"] for key, text in versions.items()} == recorded
    assert {key: hashlib.md5(text.encode()).hexdigest()[:12] for key, text in versions.items()} == {
        key: key for key in VERSIONS
    }


def _version_of(step: ExecutorStep) -> str:
    return resolve([step], "gs://bucket").of(step).version_json


def test_records_cover_every_kind_of_config() -> None:
    for key in VERSIONS:
        REBUILT.step(key)
    kinds = Counter(REBUILT.kinds[key] for key in VERSIONS)
    assert set(kinds) == {
        "TrainLmOnPodConfig", "TokenizeConfig", "HfTokenizeConfig", "EvaluationConfig", "VizLmConfig", "EvalLmConfig",
        "SpeedrunResultsConfig", "DownloadConfig", "ExtractionConfig", "other",
    }  # fmt: skip
    assert kinds["other"] < kinds.total() / 3


@pytest.mark.slow
def test_the_outputs_that_marin_published_have_their_paths() -> None:
    rebuilt = Rebuilt(PUBLISHED["versions"])
    assert len(PUBLISHED["published"]) == 59
    for key in PUBLISHED["published"]:
        step = rebuilt.step(key)
        path = f"gs://bucket/{PUBLISHED['versions'][key]['name']}-{key[:6]}"
        assert resolve([step], "gs://bucket").of(step).output_path == path
