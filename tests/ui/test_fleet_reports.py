"""Reports of upkeep, read from the events of its asset."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tradewind.fleet.upkeep import UPKEEP_ASSET, PastReport, Subject, UpkeepLine, UpkeepReport

pytestmark = pytest.mark.airflow

START = 1_800_000_000


def test_newest_events_of_the_asset_are_read() -> None:
    from airflow.models.asset import AssetEvent, AssetModel

    from tradewind_ui.api.fleet import MAX_REPORT_CHARS, upkeep_events

    engine = create_engine("sqlite://")
    tables: Any = [AssetModel.__table__, AssetEvent.__table__]
    AssetModel.metadata.create_all(engine, tables=tables)
    report = UpkeepReport([UpkeepLine("here", Subject.SLICE, "a", "dead: Google says PREEMPTED", "replaced")])

    def event(number: int, asset_id: int = 1, extra: Any = None) -> Any:
        at = datetime.fromtimestamp(START + 600 * number, UTC)
        extra = {**report.to_json(), "for_a_person": [str(number)]} if extra is None else extra
        return AssetEvent(
            asset_id=asset_id, timestamp=at, extra=extra, source_dag_id="upkeep", source_run_id=str(number)
        )

    with Session(engine) as session:
        for number, name in enumerate([UPKEEP_ASSET, "other"], 1):
            session.add(AssetModel(id=number, name=name, uri=name, group="asset", extra={}))
        session.add_all([event(number) for number in range(5)])
        session.add_all([event(9, asset_id=2), event(8, extra={"news": "x" * MAX_REPORT_CHARS})])
        session.flush()
        found = upkeep_events(session, 3, 0.0)
        assert [run_id for *_, run_id, _ in found] == ["4", "3", "2"]
        at, extra, dag_id, *_ = found[0]
        assert (at, dag_id) == (START + 2400, "upkeep")
        assert PastReport.from_json(extra, at).lines == report.lines
        assert [run_id for *_, run_id, _ in upkeep_events(session, 9, START + 1500)] == ["4", "3"]
