"""``tradewind cluster doctor`` finds what is missing, prints the fix and changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.clouds import served
from tests.fleet.fleets import write_fleet
from tests.support.google import LocalArtifactRegistry, LocalCompute, LocalResourceManager
from tradewind.fleet.doctor import Health, cloud_diagnoses
from tradewind.fleet.fleet_file import load_fleet
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

COMMAND = ("cluster", "doctor")
pytestmark = pytest.mark.slow

PROJECT = "projects/my-project"
TOKEN = f"{PROJECT}/secrets/RAY_AUTH_TOKEN"
HEAD, WORKER = (f"{name}@my-project.iam.gserviceaccount.com" for name in ("head", "worker"))
SECRETS, IMAGES = "roles/secretmanager.secretAccessor", "roles/artifactregistry.reader"
LISTS = "roles/compute.viewer"
FINDING = f"{WORKER}: finding the head, from manual slices"


@dataclass
class Environment:
    """A machine and a Google Cloud without problems."""

    folder: Path
    roles: LocalResourceManager
    secrets: LocalSecretManager
    registry: LocalArtifactRegistry
    storage: LocalCloudStorage


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    key = tmp_path / "key"
    key.write_text("a key")
    key.chmod(0o600)
    (tmp_path / "bin").mkdir()
    for name, answer in (("gcloud", '{"Google Cloud SDK": "999.0.0"}'), ("ssh", "")):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    file = write_fleet(tmp_path, f"ssh_private_key: {key}\nenvironment: {{HF_TOKEN: HF_TOKEN}}\n")
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    secrets = LocalSecretManager()
    secrets.start()
    monkeypatch.setenv("TRADEWIND_SECRET_MANAGER_ENDPOINT", secrets.endpoint)
    with ExitStack() as stack:
        roles = stack.enter_context(served(LocalResourceManager(), "cloudresourcemanager"))
        registry = stack.enter_context(served(LocalArtifactRegistry(), "artifactregistry"))
        stack.enter_context(served(LocalCompute(), "compute"))
        storage = LocalCloudStorage()
        storage.start()
        stack.callback(storage.stop)
        stack.callback(secrets.stop)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.buckets.create("my-bucket", "US-CENTRAL2")
        for secret in (TOKEN, f"{PROJECT}/secrets/HF_TOKEN"):
            secrets.put(secret, "a-hidden-value")
        for account in (HEAD, WORKER):
            for role in (SECRETS, IMAGES):
                roles.grant("my-project", role, account)
        roles.grant("my-project", LISTS, WORKER)
        yield Environment(tmp_path, roles, secrets, registry, storage)


def problems(run: Run) -> dict[str, tuple[str, str, str]]:
    """Return the problems: subject → severity, finding and fix."""
    found = run("--json").json
    return {each["about"]: (each["health"], each["found"], each["mend"]) for each in found if each["health"] != "ok"}


def test_doctor_prints_one_line_per_passed_check(environment: Environment, run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, ""), out
    assert "ok       gcloud: 999.0.0" in out and "ok       bucket my-bucket: in us-central2" in out
    assert f"ok       {HEAD}: secret HF_TOKEN: {SECRETS} on project my-project" in out
    assert "a-hidden-value" not in out


def test_missing_program_or_key_is_reported_with_fix(environment: Environment, run: Run) -> None:
    (environment.folder / "bin" / "gcloud").unlink()
    (environment.folder / "bin" / "ssh").unlink()
    (environment.folder / "key").chmod(0o644)
    found = problems(run)
    key = f"SSH key {environment.folder}/key"
    assert set(found) == {"gcloud", "ssh", key}
    assert found["gcloud"][:2] == ("WRONG", "not installed") and "Install the Google Cloud CLI" in found["gcloud"][2]
    assert "mode 0644" in found[key][1] and found[key][2] == f"chmod 600 {environment.folder}/key"
    (environment.folder / "key").unlink()
    (environment.folder / "bin" / "gcloud").write_text("#!/bin/sh\necho nothing\n")
    os.chmod(environment.folder / "bin" / "gcloud", 0o755)
    found = problems(run)
    assert "No such file" in found[key][1] and "does not run" in found["gcloud"][1]


def test_missing_permissions_are_named_with_granting_roles(environment: Environment, run: Run) -> None:
    environment.roles.missing |= {"tpu.nodes.create", "compute.disks.use"}
    code, out, err = run()
    assert code == 1 and "missing: compute.disks.use, tpu.nodes.create" in out and "roles/tpu.admin" in out
    assert err.endswith("1 failed, and 0 could not be made.\n")


def test_a_bucket_that_is_missing_or_elsewhere_is_found(environment: Environment, run: Run) -> None:
    file = environment.folder / "fleet.yaml"
    environment.storage.buckets.create("away", "EUROPE-WEST4")
    file.write_text(file.read_text().replace("bucket: my-bucket", "bucket: away"))
    assert problems(run)["bucket away"][1] == "it is in europe-west4, and the cluster in us-central2"
    file.write_text(file.read_text().replace("bucket: away", "bucket: gone"))
    assert problems(run)["bucket gone"][2] == "gcloud storage buckets create gs://gone --location=us-central2"


def test_a_token_that_is_missing_or_switched_off_is_found(environment: Environment, run: Run) -> None:
    environment.secrets.disabled.add(f"{TOKEN}/versions/1")
    about = "token RAY_AUTH_TOKEN in my-project"
    assert problems(run)[about][1] == "version 1, the newest, is disabled"
    environment.secrets.put(TOKEN, "another")
    assert about not in problems(run)
    environment.secrets.refused.add("secretmanager.versions.list")
    assert problems(run)[about][0] == "unknown"


def test_service_account_needs_unconditional_role_grants(environment: Environment, run: Run) -> None:
    environment.roles.bindings.clear()
    environment.roles.grant("my-project", "roles/editor", HEAD)
    environment.roles.grant("my-project", SECRETS, WORKER, condition="request.time < timestamp('2020-01-01T00:00:00Z')")
    found = problems(run)
    image = "repository tradewind in us-central2"
    assert set(found) == {
        f"{HEAD}: secret HF_TOKEN", f"{HEAD}: secret RAY_AUTH_TOKEN", f"{WORKER}: secret HF_TOKEN",
        f"{WORKER}: secret RAY_AUTH_TOKEN", f"{WORKER}: {image}", FINDING,
    }  # fmt: skip
    assert found[f"{WORKER}: {image}"][2] == (
        f"gcloud projects add-iam-policy-binding my-project --member=serviceAccount:{WORKER} --role={IMAGES}"
    )
    member = [f"serviceAccount:{account}" for account in (HEAD, WORKER)]
    environment.secrets.policies[TOKEN] = [{"role": SECRETS, "members": member}]
    repository = f"{PROJECT}/locations/us-central2/repositories/tradewind"
    environment.registry.policies[repository] = [{"role": IMAGES, "members": member}]
    assert set(problems(run)) == {f"{HEAD}: secret HF_TOKEN", f"{WORKER}: secret HF_TOKEN", FINDING}
    environment.roles.denied.add("resourcemanager.projects.getIamPolicy")
    assert problems(run)[f"{HEAD}: secret HF_TOKEN"][0] == "unknown"


def test_hosts_without_list_permission_cannot_find_head(environment: Environment, run: Run) -> None:
    environment.roles.bindings["my-project"] = [
        one for one in environment.roles.bindings["my-project"] if one["role"] != LISTS
    ]
    environment.roles.grant("my-project", LISTS, HEAD)
    mend = f"gcloud projects add-iam-policy-binding my-project --member=serviceAccount:{WORKER} --role={LISTS}"
    assert problems(run) == {FINDING: ("WRONG", f"it has not {LISTS}", mend)}
    environment.roles.grant("my-project", "roles/compute.instanceAdmin.v1", WORKER)
    assert FINDING not in problems(run)


@pytest.mark.parametrize(("skew", "words"), [(40.0, "ahead of"), (-40.0, "behind"), (20.0, "")])
def test_a_wrong_clock_is_found(environment: Environment, skew: float, words: str) -> None:
    fleet = load_fleet(environment.folder / "fleet.yaml")
    diagnoses = cloud_diagnoses(fleet.clusters.values(), now=lambda: time.time() + skew)
    [clock] = [diagnosis for diagnosis in diagnoses if diagnosis.about == "clock"]
    assert (clock.health is Health.WRONG) == bool(words) and words in clock.found


def test_a_google_cloud_that_does_not_answer_is_no_judgement(
    environment: Environment, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradewind.fleet.cloud.google_api._RETRIES", 0)
    environment.roles.failures = 1000
    found = problems(run)
    assert {health for health, _, _ in found.values()} <= {"unknown"} and "your permissions in my-project" in found
