"""Tasks translate the resources of a step or job for Ray and refuse those that its cluster lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray as ray_library

from tests.ray_jobs.ended_jobs import ended_job
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import until
from tradewind import Cpu, ExecutorStep, Gpu, Hosts, TpuSlice, on_airflow_worker, on_head_node, remote
from tradewind.cloud_tpu.slice_types import SLICE_TYPES, UnknownSliceTypeError
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.request import JobRequest, check_request
from tradewind.rehearsal.local.ray import LocalSlice
from tradewind.steps import Resources
from tradewind.tasks.jobs.placement import Placement, check_function_place, place_driver, place_entrypoint


@pytest.mark.parametrize(
    ("resources", "placement"),
    [
        (None, Placement(num_cpus=1.0)),
        (Cpu(4, 10**9), Placement(num_cpus=4, memory_bytes=10**9)),
        (Gpu(2, num_cpus=8), Placement(num_cpus=8, num_gpus=2.0)),
        (Gpu(1, "A100"), Placement(num_cpus=1.0, num_gpus=1.0, resources={"accelerator_type:A100": 0.001})),
        (on_head_node(), Placement(num_cpus=0.0, resources={"node:__internal_head__": 0.001})),
        (TpuSlice("v4-16"), Placement(num_cpus=0.0)),
        (TpuSlice("v4-16", num_slices=(2, 1)), Placement(num_cpus=0.0)),
        (Hosts(2, num_cpus=8, gpus=4), Placement(num_cpus=0.0)),
    ],
)
def test_each_kind_of_resources_has_its_place(resources: Resources | None, placement: Placement) -> None:
    assert place_driver(resources) == placement
    with pytest.raises(BadRequestError, match="not a place on a Ray cluster"):
        place_driver(on_airflow_worker())


@pytest.mark.parametrize(
    "name", ["v4-8", "v5p-8", "v5litepod-1", "v5litepod-4", "v5litepod-8", "v6e-1", "v6e-4", "v6e-8"]
)
def test_plain_job_takes_one_host_slice_by_head_and_label(name: str) -> None:
    place = place_entrypoint(TpuSlice(name))
    chips = 4 if name in ("v4-8", "v5p-8") else int(name.rpartition("-")[2])
    assert place.resources == {f"TPU-{name}-head": 1, "TPU": chips}
    assert place.label_selector == {"ray.io/tpu-pod-type": name}
    check_request(JobRequest("j", "true", **place.fields()))


@pytest.mark.parametrize("name", [shape.name for shape in SLICE_TYPES.values() if shape.is_multi_host])
def test_plain_job_on_several_hosts_is_refused_with_alternatives(name: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        place_entrypoint(TpuSlice(name))
    assert f"resources=TpuSlice({name!r}), which runs on every host" in str(caught.value)
    one_host = str(caught.value).rstrip(".").rpartition("such as ")[2]
    assert not SLICE_TYPES[one_host].is_multi_host


@pytest.mark.parametrize("resources", [TpuSlice("v4-8", num_slices=2), TpuSlice("v4-8", (2, 1)), Hosts(1), Hosts(2)])
def test_plain_job_on_several_slices_or_host_group_is_refused(resources: Resources) -> None:
    with pytest.raises(BadRequestError, match=r"A plain job runs on one node, .*\. Make it a step"):
        place_entrypoint(resources)


def test_an_unknown_slice_type_is_refused() -> None:
    with pytest.raises(UnknownSliceTypeError):
        place_entrypoint(TpuSlice("v4-17"))


def work(config: Any) -> None: ...


TPU_FUNCTIONS = [
    remote(resources={"TPU": 4})(work),
    remote(resources={"TPU-v4-8-head": 1, "TPU-v6e-8-head": 1})(work),
    remote(resources={"accelerator_type:TPU-V4": 0.001})(work),
    remote(num_tpus=4)(work),
    remote(accelerator_type="TPU-V4")(work),
    remote(label_selector={"ray.io/tpu-pod-type": "v4-8"})(work),
    remote(label_selector={"ray.io/accelerator-type": "TPU-V4"})(work),
    ray_library.remote(resources={"TPU": 4})(work),
]


@pytest.mark.parametrize("resources", [None, Cpu(), Gpu(), Hosts(2), on_head_node(), on_airflow_worker()])
@pytest.mark.parametrize("function", TPU_FUNCTIONS)
def test_function_requesting_tpu_is_refused_without_tpu(function: Any, resources: Any) -> None:
    refusal = r"Step 'train': its function requests TPU .*resources=TpuSlice\('v4-8'\)"
    with pytest.raises(BadRequestError, match=refusal):
        check_function_place(ExecutorStep("train", function, {}, resources=resources))


@pytest.mark.parametrize("decorator", [remote, ray_library.remote])
def test_function_requesting_head_of_slice_runs_on_it(decorator: Any) -> None:
    def step(kind: str, resources: Any = None) -> ExecutorStep:
        function = decorator(resources={"TPU": 4, f"TPU-{kind}-head": 1})(work)
        return ExecutorStep("train", function, {}, resources=resources)

    assert step("v4-8").resources == TpuSlice("v4-8")
    check_function_place(step("v4-8"))
    check_function_place(step("v4-16", TpuSlice("v4-8")))
    for several in (step("v4-16"), step("v4-16", TpuSlice("v4-16", 2))):
        with pytest.raises(BadRequestError, match="Step 'train': .* the head of a v4-16 slice .* first host only"):
            check_function_place(several)
    with pytest.raises(BadRequestError, match="its function requests TPU"):
        check_function_place(step("v4-8", Cpu()))


@pytest.mark.parametrize(
    "function",
    [
        work,
        None,
        remote(work),
        remote(num_gpus=1)(work),
        remote(accelerator_type="A100")(work),
        remote(resources={"TPUX": 1})(work),
        remote(num_tpus=0)(work),
        ray_library.remote(work),
    ],
)
def test_other_functions_run_on_cpus_and_tpu_functions_on_slices(function: Any) -> None:
    check_function_place(ExecutorStep("train", function, {}, resources=Cpu()))
    check_function_place(ExecutorStep("train", TPU_FUNCTIONS[0], {}, resources=TpuSlice("v4-8")))


@pytest.mark.parametrize("resources", [TpuSlice("v4-8"), Hosts(2)])
@pytest.mark.parametrize("decorator", [remote, ray_library.remote])
def test_function_environment_on_hosts_is_refused(decorator: Any, resources: Any) -> None:
    function = decorator(runtime_env={"env_vars": {"A": "b"}})(work)
    with pytest.raises(BadRequestError, match=r"Step 'train': @remote\(runtime_env=...\) has no effect on"):
        check_function_place(ExecutorStep("train", function, {}, resources=resources))
    check_function_place(ExecutorStep("train", function, {}, resources=Cpu()))


# ---- tests on real nodes


@pytest.fixture(scope="module")
def jobs() -> Iterator[RayJobs]:
    ray = shared_cluster("open")
    slices = [LocalSlice("large", "v4-16"), LocalSlice("small", "v4-8")]
    for one in slices:
        ray.start_slice(one)
    yield RayJobs(RayCluster("here", ray.address))
    for one in slices:
        ray.kill_slice(one.name)


# Jobs write their messages to files: Ray's simulated hosts do not serve the logs of each other's jobs.


@pytest.mark.ray
@pytest.mark.parametrize(("resources", "slice_name"), [(TpuSlice("v4-8"), "small"), (on_head_node(), "none")])
def test_entrypoint_runs_on_its_node(jobs: RayJobs, resources: Resources, slice_name: str, tmp_path: Path) -> None:
    job = f"placed-{type(resources).__name__}"
    place = place_entrypoint(resources).fields()
    jobs.submit_or_attach(check_request(JobRequest(job, f"echo ${{TPU_NAME:-none}} > {tmp_path}/place", **place)))
    status, lines = ended_job(jobs, job)
    assert status == "SUCCEEDED", lines
    assert (tmp_path / "place").read_text() == f"{slice_name}\n"


@pytest.mark.ray
def test_job_waits_for_busy_slice_and_takes_no_other_host(jobs: RayJobs, tmp_path: Path) -> None:
    place = place_entrypoint(TpuSlice("v4-8")).fields()
    log = f"{tmp_path}/log"
    first = f"echo first begins >> {log}; until test -e {tmp_path}/go; do sleep 0.1; done; echo first ends >> {log}"
    jobs.submit_or_attach(JobRequest("placed-first", first, **place))
    until(lambda: Path(log).exists())
    jobs.submit_or_attach(JobRequest("placed-second", f"echo second on $TPU_NAME >> {log}", **place))
    until(lambda: "resources" in message_of(jobs, "placed-second"))  # Ray reports that the job waits for them
    (tmp_path / "go").touch()
    for job in ("placed-first", "placed-second"):
        status, lines = ended_job(jobs, job)
        assert status == "SUCCEEDED", lines
    assert Path(log).read_text().splitlines() == ["first begins", "first ends", "second on small"]


def message_of(jobs: RayJobs, job: str) -> str:
    details = jobs.details(job)
    assert details is not None
    return details.message
