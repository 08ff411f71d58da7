"""A task whose step has an unreadable lease reports the file and starts no attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operators.test_deployments import Airflow
from tradewind.records.lease import lease_path
from tradewind.tasks.errors import BadInputError
from tradewind.tasks.step_try import Progress


def test_a_task_fails_at_once_and_names_the_lease_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow("prod", tmp_path)
    output = airflow.task._new_try(airflow.context(1), Progress()).step_lease.path
    file = Path(lease_path(output))
    file.parent.mkdir(parents=True)
    file.write_text('{"worker_id": "w", "timest')
    with pytest.raises(BadInputError, match=f"Step 'train': The lease {file} cannot be read, because it holds no JSON"):
        airflow.starts(monkeypatch, try_number=1)
    assert [path.name for path in Path(output).iterdir()] == [file.name]
