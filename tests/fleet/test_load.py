"""The fleet file: its content, and an error for each possible mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray._private.accelerators import TPUAcceleratorManager

from tests.fleet.fleets import HEAD, SHIPPED, write_fleet
from tradewind.cloud_tpu.slice_types import SLICE_TYPES, slice_type
from tradewind.fleet.clusters import GENERATIONS, Capacity, Fleet, TpuGeneration
from tradewind.fleet.errors import BadFileError, UnknownClusterError
from tradewind.fleet.fleet_file import load_fleet


def problems(folder: Path, more: str = "", *, inside: bool = True) -> list[str]:
    """Return the problems of a fleet file, without the path before each."""
    file = write_fleet(folder, more, inside=inside)
    with pytest.raises(BadFileError) as caught:
        load_fleet(file)
    return str(caught.value).replace(f"{file}:", "").splitlines()


def test_omitted_fields_follow_from_given_ones(tmp_path: Path) -> None:
    cluster = load_fleet(write_fleet(tmp_path)).cluster()
    assert (cluster.name, cluster.region, cluster.connection, cluster.staging) == ("here", "us-central2", "here", False)
    assert cluster.full_image == "us-central2-docker.pkg.dev/my-project/tradewind/tradewind_cluster:latest"
    assert (cluster.capacity, cluster.token_secret) == (Capacity.PREEMPTIBLE, "RAY_AUTH_TOKEN")
    base, *others = cluster.pools
    assert (base.node_type, base.kind.name, base.minimum, base.maximum) == ("tpu_worker", "v4-8", 4, 1024)
    assert [pool.node_type for pool in others] == [f"tpu_slice_v4_{2**power}" for power in range(4, 13)]
    assert {(pool.minimum, pool.maximum) for pool in others} == {(0, 1024)}


def test_slice_limits_override_defaults_and_zero_max_omits_type(tmp_path: Path) -> None:
    more = "max_workers: 50\nslices:\n  v4-16: {min: 2, max: 3}\n  v4-32: {max: 0}\n  v4-64: {min: 1}\n"
    cluster = load_fleet(write_fleet(tmp_path, more)).cluster()
    limits = {pool.kind.name: (pool.minimum, pool.maximum) for pool in cluster.pools}
    assert (limits["v4-8"], limits["v4-16"], limits["v4-64"], limits["v4-128"]) == ((4, 50), (2, 3), (1, 50), (0, 50))
    assert "v4-32" not in limits


def test_base_type_replaces_smallest_and_may_be_below_offered(tmp_path: Path) -> None:
    more = "  away: {zone: europe-west4-b, generation: v5e, base_slice_type: v5litepod-1, bucket: away}\n"
    fleet = load_fleet(write_fleet(tmp_path, f"    base_slice_type: v4-16\n{more}", inside=False))
    kinds = {name: [pool.kind.name for pool in cluster.pools[:3]] for name, cluster in fleet.clusters.items()}
    assert kinds == {"here": ["v4-16", "v4-8", "v4-32"], "away": ["v5litepod-1", "v5litepod-4", "v5litepod-8"]}
    assert [pool.kind.chips_per_host for pool in fleet.cluster("away").pools[:3]] == [1, 4, 8]


def test_tables_of_defaults_merge_with_a_clusters_own(tmp_path: Path) -> None:
    file = write_fleet(tmp_path, "environment: {B: mine, C: mine}\n")
    file.write_text(file.read_text().replace("defaults:\n", "defaults:\n  environment: {A: all, B: all}\n"))
    assert load_fleet(file).cluster().environment == {"A": "all", "B": "mine", "C": "mine"}


def test_image_with_registry_is_unchanged(tmp_path: Path) -> None:
    cluster = load_fleet(write_fleet(tmp_path, 'image: localhost:5000/team/cluster\ntag: "20260129"\n')).cluster()
    assert (cluster.full_image, cluster.registry) == ("localhost:5000/team/cluster:20260129", "localhost:5000")


def test_bucket_shared_across_regions_belongs_to_no_region(tmp_path: Path) -> None:
    more = (
        "  away: {zone: europe-west4-b, generation: v5e, bucket: my-bucket}\n"
        "  there: {zone: us-east5-a, generation: v5p, bucket: my-bucket-5}\n"
    )
    assert load_fleet(write_fleet(tmp_path, more, inside=False)).bucket_regions() == {"my-bucket-5": "us-east5"}


def test_unknown_cluster_suggests_nearest_names() -> None:
    fleet = load_fleet(SHIPPED)
    with pytest.raises(UnknownClusterError, match="no cluster 'us-centrall2': did you mean us-central2 or us-central1"):
        fleet.cluster("us-centrall2")
    assert fleet.cluster().name == "us-central2"


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda generation: generation.name)
def test_offered_slices_span_smallest_to_largest_type(generation: TpuGeneration) -> None:
    offered = [kind.name for kind in generation.offered]
    assert (offered[0], offered[-1]) == (generation.smallest, generation.largest)
    assert all(generation.has(kind) for kind in generation.offered)
    assert all(TPUAcceleratorManager.is_valid_tpu_accelerator_type(name) for name in offered)
    assert len({kind.chips for kind in generation.offered}) == len(offered)


def test_fleet_generations_are_those_of_slice_types() -> None:
    named = {slice_type(generation.smallest).generation for generation in GENERATIONS.values()}
    assert named == {kind.generation for kind in SLICE_TYPES.values()}


OTHER = "zone: us-east5-a, generation: v5p, bucket: abc"
BAD = [
    ("zonee: us-central2-b\n", "11: cluster here, zonee: there is no such field: did you mean zone"),
    ("colour: red\n", "11: cluster here, colour: there is no such field: there is only project, zone, "),
    ("slices: {v4-9: {min: 1}}\n", "11: cluster here, slices.v4-9: There is no TPU slice type 'v4-9'; the nearest"),
    ("slices: {v5p-16: {}}\n", "11: cluster here, slices.v5p-16: v5p-16 is no slice of generation v4, which has v4-8,"),
    ("slices:\n  v4-16:\n    min: 9\n    max: 3\n", "13: cluster here, slices.v4-16.min: the minimum 9 is above the"),
    ("slices: {v4-16: {max: 2000}}\n", "11: cluster here, slices.v4-16.max: the maximum 2000 is above max_workers"),
    ("slices: {v4-8: {min: 1}}\n", "11: cluster here, slices.v4-8: this is the base type: its minimum is min_workers"),
    ("slices: {v4-16: {minimum: 1}}\n", "11: cluster here, slices.v4-16.minimum: there is no such field: did you mean"),
    ("slices: {v4-16: 3}\n", "11: cluster here, slices.v4-16: 3 is a number, where a table of fields belongs."),
    ("slices: [v4-16]\n", "11: cluster here, slices: ['v4-16'] is a list, where a table of fields belongs."),
    ("base_slice_type: v6e-8\n", "11: cluster here, base_slice_type: v6e-8 is no slice of generation v4"),
    ("max_workers: 3\n", "7: cluster here: its minimums add up to 4 slices, and max_workers is 3"),
    ("min_workers: -1\n", "11: cluster here, min_workers: -1 is less than 0, and must not be."),
    ("min_workers: four\n", "11: cluster here, min_workers: 'four' is text, where a whole number belongs."),
    ("min_workers: 1.5\n", "11: cluster here, min_workers: 1.5 is a number, where a whole number belongs."),
    ("staging: maybe\n", "11: cluster here, staging: 'maybe' is text, where true or false belongs."),
    ("staging:\n", "11: cluster here, staging: None is nothing, where true or false belongs."),
    ("tag: 20260129\n", "11: cluster here, tag: 20260129 is a number, where text belongs: put it in quotes."),
    ("tag: 2026-01-29\n", "is a date, where text belongs: put it in quotes."),
    ("tag: a b\n", "11: cluster here, tag: 'a b' does not go here: write the image's tag, in quotes if it is a number"),
    ("image: a:b\n", "11: cluster here, image: 'a:b' does not go here: write the image's name in the repository"),
    ("region: us-central1\n", "11: cluster here, region: zone us-central2-b is not in region us-central1: leave the"),
    ("capacity: spot\n", "11: cluster here, capacity: 'spot' is none of preemptible, reserved, best_effort: "),
    ("capacity: preemptable\n", "did you mean preemptible?"),
    ("environment: {1A: s}\n", "11: cluster here, environment.1A: '1A' does not go here: write the name of a variable"),
    ("environment: {LD_AUDIT: s}\n", "environment.LD_AUDIT: 'LD_AUDIT' does not go here: write the name of a variable"),
    ("environment: {A: gs://b}\n", "11: cluster here, environment.A: the value (not shown) does not go here: write"),
    ("token_secret: hunter/2\n", "11: cluster here, token_secret: the value (not shown) does not go here: write the"),
    ("head_service_account: me@x.org\n", "11: cluster here, head_service_account: 'me@x.org' does not go here: write"),
    ("ssh_private_key: $(id)\n", "11: cluster here, ssh_private_key: '$(id)' does not go here: write the file"),
    ("project: My Project\n", "11: cluster here, project: 'My Project' does not go here: write the Google Cloud"),
    ('project: "my-project\\n"\n', "11: cluster here, project: a line break or a control character does not belong"),
    ("zone: us-central1-a\n", "11: clusters.here.zone is here and in line 8"),
    (f"  Away: {{{OTHER}}}\n", "11: cluster Away: 'Away' does not go here: write a"),
    (f"  {'a' * 36}: {{{OTHER}}}\n", "write a cluster's name: at most 35 lowerc"),
    (f"  here: {{{OTHER}}}\n", "11: clusters.here is here and in line 7: give one"),
    ("  away: {zone: us-east5-a, bucket: abc}\n", "11: cluster away: generation is missing: write it here, or in"),
    ("  away: {zone: us-east5, generation: v5p, bucket: abc}\n", "11: cluster away, zone: 'us-east5' does not go here"),
    ("  away: {zone: us-east5-a, generation: v5, bucket: abc}\n", "'v5' is none of v4, v5e, v5p, v6e: did you mean"),
    ("  away: {zone: us-east5-a, generation: v5p, bucket: gs://b}\n", "bucket: 'gs://b' does not go here: write the"),
    ("  away: 3\n", "11: cluster away: 3 is a number, where a table of fields belongs."),
]


@pytest.mark.parametrize(("more", "says"), BAD, ids=[more.splitlines()[0][:40] for more, _ in BAD])
def test_invalid_field_is_reported_with_line_and_fix(more: str, says: str, tmp_path: Path) -> None:
    """A cluster's fields are indented by the helper; other lines begin with a space."""
    (problem,) = problems(tmp_path, more, inside=not more.startswith(" "))
    assert says in problem


def test_clusters_that_share_a_connection_are_both_named(tmp_path: Path) -> None:
    connections = {"a": "ray_x", "b": "ray_x", "c": "d", "d": "ray_d"}
    more = "".join(f"  {name}: {{{OTHER}, connection: {named}}}\n" for name, named in connections.items())
    assert problems(tmp_path, more, inside=False) == [
        "11: cluster a, connection: connection 'ray_x' is also that of b: give each its own.",
        "12: cluster b, connection: connection 'ray_x' is also that of a: give each its own.",
        "13: cluster c, connection: 'd' is the name of another cluster: give the connection another id.",
    ]


def test_all_mistakes_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    more = (
        "    zonee: a\n    tag: 3\n    tag: 4\n    region: us-central1\n"
        "    slices: {v4-9: {}, v4-16: {min: 3, max: 2}}\n"
        "  Away: {zone: us-east5-a, generation: v5p, bucket: abc}\n"
        "  b: {zone: us-east5-a, bucket: abc, connection: here, staging: !truth yes}\n"
    )
    lines = problems(tmp_path, more, inside=False)
    assert [(line.split(": ")[0], line.split(": ")[1]) for line in lines] == [
        ("7", "cluster here, connection"), ("11", "cluster here, zonee"), ("12", "cluster here, tag"),
        ("13", "clusters.here.tag is here and in line 12"), ("14", "cluster here, region"),
        ("15", "cluster here, slices.v4-16.min"), ("15", "cluster here, slices.v4-9"), ("16", "cluster Away"),
        ("17", "'yes' is not what its tag !truth says"), ("17", "cluster b, connection"), ("17", "cluster b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default_cluster: a\n", "'clusters' is missing: add it the clusters, by their names."),
        ("[]", "[] is a list, where a table of fields belongs."),
        ("default_cluster: a\nclusters: {}\n", "clusters: there is nothing in it: add at least 1."),
        (f"{HEAD}defaults: {{}}\n", "11: defaults is here and in line 2"),
        (f"{HEAD}cluster: {{}}\n", "11: cluster: there is no such field: did you mean clusters"),
        (HEAD.replace("cluster: here", "cluster: there"), "1: default_cluster: there is no cluster 'there': did you"),
        (HEAD.replace("    zone:", "    zonee:"), "zonee: there is no such field"),
        (HEAD.replace("us-central2-b", "us-central2"), "zone: 'us-central2' does not go here"),
        (HEAD.replace("  project:", "  projekt:"), "projekt: there is no such field"),
        (HEAD.replace("defaults:", "default:"), "default: there is no such field: did you mean defaults"),
        (HEAD.replace("default_cluster: here", "default_cluster: Here").replace("  here:", "  Here:"), "cluster Here"),
        (f"{HEAD}    max_workers: 2\n    min_worker: 1\n", "min_worker: there is no such field"),
        (f"{HEAD}    max_workers: 2\n    min_workers: one\n", "min_workers: 'one' is text"),
        (f"{HEAD}    base_slice_typ: v4-16\n    slices: {{v4-8: {{}}}}\n", "base_slice_typ: there is no such field"),
        (f"{HEAD}    staging: !truth yes\n", "'yes' is not what its tag !truth says"),
    ],
)
def test_each_mistake_is_reported_once_without_its_consequences(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    with pytest.raises(BadFileError) as caught:
        load_fleet(tmp_path / "fleet.yaml")
    assert len(caught.value.problems) == 1 and says in str(caught.value)


SHIPPED_CONTENT = yaml.safe_load(SHIPPED.read_text())
ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.lists(st.integers(), max_size=2)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(data=st.data())
def test_any_field_value_is_loaded_or_refused_by_a_sentence(data: st.DataObject, tmp_path: Path) -> None:
    content: dict[str, Any] = yaml.safe_load(HEAD)
    fields = sorted(SHIPPED_CONTENT["defaults"]) + ["zone", "generation", "bucket", "slices", "owner", "connection"]
    field = data.draw(st.sampled_from(fields))
    content["clusters"]["here"][field] = data.draw(ODD | st.dictionaries(st.text(max_size=5), ODD, max_size=2))
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(content))
    try:
        assert isinstance(load_fleet(file), Fleet)
    except BadFileError as error:
        for line in str(error).splitlines():
            assert line.startswith(f"{file}:") and line.endswith((".", "?"))
