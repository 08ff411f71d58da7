"""Errors about missing token caches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.datasets.caches import write_cache
from tradewind.recipes.lm.data_locations import check_places


def test_rerun_not_advised_if_only_validation_split_missing(tmp_path: Path) -> None:
    component = SimpleNamespace(cache_dir=str(tmp_path), flat_cache=False, source=None, format=None, pack=None)
    data = SimpleNamespace(components={"web": component}, train_weights=None, cache_dir=None)
    config = SimpleNamespace(
        train_config=SimpleNamespace(data=data, model=SimpleNamespace(max_seq_len=16)), auto_build_caches=False
    )
    for split, sentence in (
        ("train", f"train at {tmp_path}/train: run the step that makes it, since its component has no"),
        ("validation", f"validation at {tmp_path}/validation, and there is one for train: give its step validation_p"),
    ):
        with pytest.raises(ValueError) as error:
            check_places(config)
        there_is = "train_config.data.components['web']: there is no finished token cache for "
        assert str(error.value).startswith(there_is + sentence)
        write_cache(tmp_path / split)
