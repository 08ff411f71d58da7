"""Evidence determines whether an incident is a preemption, a failure or a loss."""

import itertools
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.runtime.pods.verdicts import NOTICED, Cause, Evidence, determine_incident, may_be_a_lost_peer

HOST_1 = Evidence(host=1, slice_name="s1", slice_type="v4-16", num_hosts=2, is_node_alive=True)
HOST_0 = replace(HOST_1, host=0)
VALUE_ERROR = {
    "type": "ValueError",
    "message": "no such layer.",
    "traceback": "Traceback ...\nValueError: no such layer.",
}
LOST_PEER = {
    "type": "XlaRuntimeError",
    "message": "UNAVAILABLE: Connection reset by peer",
    "traceback": "Traceback ...",
}

TABLE = [
    ({"is_preempted": True, "exit_code": 1}, Cause.PREEMPTED, "was preempted"),
    ({"is_node_alive": False, "is_actor_lost": True}, Cause.NODE_DIED, "was lost: its Ray node died"),
    ({"is_node_draining": True, "exit_code": 1}, Cause.DRAINED, "is being drained: its Ray node is about to go"),
    (
        {"is_cut_off": True},
        Cause.CUT_OFF,
        "heard nothing of its driver for too long or was frozen itself, and ended its process",
    ),
    (
        {"exit_code": NOTICED, "has_notice": True},
        Cause.NOTICED,
        "saved a checkpoint before it would be preempted, and ended",
    ),
    (
        {"exit_code": NOTICED},
        Cause.EXITED,
        "exited with code 76, which means a checkpoint on notice, but there was no notice",
    ),
    ({"start_problem": "no such file: train"}, Cause.CANNOT_START, "could not run the command (no such file: train)"),
    ({"exit_code": 127}, Cause.CANNOT_START, "exited with code 127: a command was not found"),
    ({"silent_s": 75.4}, Cause.SILENT, "has been silent for 75 s: its process is frozen, or the others wait for it"),
    ({"exit_code": 1, "error": VALUE_ERROR}, Cause.EXCEPTION, "raised ValueError: no such layer"),
    ({"is_actor_lost": True}, Cause.ACTOR_LOST, "lost the Ray worker that held its process, though its node lives"),
    (
        {"is_actor_lost": True, "is_node_alive": None},
        Cause.ACTOR_LOST,
        "lost the Ray worker that held its process, though its node lives",
    ),
    ({"exit_code": -9}, Cause.KILLED, "was killed by SIGKILL on a node that lives: most likely the memory ran out"),
    ({"exit_code": -11}, Cause.KILLED, "was killed by SIGSEGV"),
    ({"exit_code": 3}, Cause.EXITED, "exited with code 3"),
]


@pytest.mark.parametrize(("found", "cause", "reason"), TABLE, ids=lambda value: getattr(value, "value", ""))
def test_evidence_determines_cause_and_sentence(found, cause, reason):
    incident = determine_incident(replace(HOST_1, **found))
    assert incident.cause is cause
    assert incident.sentence == f"Host 1 of the v4-16 slice s1 {reason}; the other host was ended."


def test_node_loss_is_preemption_and_other_causes_are_failures():
    preemptions = {cause for cause in Cause if cause.is_preemption}
    assert preemptions == {Cause.NODE_DIED, Cause.DRAINED, Cause.PREEMPTED, Cause.NOTICED, Cause.CUT_OFF}


def test_incident_includes_traceback_and_last_lines():
    incident = determine_incident(replace(HOST_1, exit_code=1, error=VALUE_ERROR, last_lines=("loss 3.2",)))
    assert (incident.slice_name, incident.host, incident.exit_code) == ("s1", 1, 1)
    assert incident.traceback == VALUE_ERROR["traceback"]
    assert incident.last_lines == ("loss 3.2",)


@pytest.mark.parametrize(
    ("slice_type", "hosts", "sentence"),
    [
        ("v4-8", 1, "Host 0 of the v4-8 slice exited with code 3."),
        ("v4-8", 2, "Host 0 of the v4-8 slice exited with code 3; the other host was ended."),
        ("v4-8", 8, "Host 0 of the v4-8 slice exited with code 3; the other 7 hosts were ended."),
        ("2-host GPU", 1, "Host 0 of the 2-host GPU group exited with code 3."),
    ],
)
def test_sentence_names_group_and_counts_other_hosts(slice_type, hosts, sentence):
    one = Evidence(host=0, slice_name=None, slice_type=slice_type, num_hosts=hosts, exit_code=3)
    assert determine_incident(one).sentence == sentence


SAVED, ABORTED = replace(HOST_0, exit_code=NOTICED), replace(HOST_0, exit_code=-signal.SIGABRT)
RESET = replace(HOST_0, exit_code=1, error=LOST_PEER)
HANGS = replace(HOST_1, error=VALUE_ERROR, silent_s=61.0)


@pytest.mark.parametrize(
    ("first", "other", "cause", "host"),
    [
        (RESET, replace(HOST_1, is_node_alive=False), Cause.NODE_DIED, 1),
        (SAVED, replace(HOST_1, is_node_draining=True), Cause.DRAINED, 1),
        (SAVED, replace(HOST_1, has_notice=True), Cause.NOTICED, 0),
        (ABORTED, replace(HOST_1, silent_s=31.0), Cause.SILENT, 1),
        (ABORTED, HOST_1, Cause.KILLED, 0),
        (RESET, HANGS, Cause.EXCEPTION, 1),  # it raised, and hangs at its exit
        (replace(HOST_1, exit_code=3), replace(HOST_0, exit_code=4), Cause.EXITED, 1),
    ],
)
def test_incident_is_that_of_first_cause(first, other, cause, host):
    incident = determine_incident(first, [other])
    assert (incident.cause, incident.host) == (cause, host)


@pytest.mark.parametrize(
    "message", ["Gloo connectFullMesh failed", "Connection reset by peer", "coordination service: task 1 unhealthy"]
)
def test_incident_names_faulty_host_rather_than_affected_host(message):
    symptom = replace(HOST_0, exit_code=1, error={**LOST_PEER, "message": message})
    assert may_be_a_lost_peer(symptom)
    incident = determine_incident(symptom, [replace(HOST_1, exit_code=1, error=VALUE_ERROR)])
    assert incident.host == 1
    assert determine_incident(symptom, [HOST_1]).host == 0


def test_abort_of_only_process_has_no_lost_peer():
    assert not may_be_a_lost_peer(replace(ABORTED, num_hosts=1))


def test_healthy_pod_has_no_incident():
    with pytest.raises(ValueError, match="Nothing is wrong"):
        determine_incident(HOST_1, [replace(HOST_0, exit_code=0)])


FINDINGS = st.sampled_from([{}, *(found for found, _, _ in TABLE)]).map(lambda found: {"is_node_alive": True, **found})


@pytest.mark.slow
@given(st.lists(FINDINGS, min_size=1, max_size=4))
def test_host_order_does_not_decide_preemption_or_failure(findings):
    hosts = [replace(HOST_1, host=rank, **found) for rank, found in enumerate(findings)]
    if all(found == {"is_node_alive": True} for found in findings):
        return
    verdicts = {determine_incident(first, rest).cause.is_preemption for first, *rest in itertools.permutations(hosts)}
    assert len(verdicts) == 1
    if any(host.is_node_alive is False or host.is_preempted or host.is_node_draining for host in hosts):
        assert verdicts == {True}


def test_documentation_has_row_for_each_cause():
    page = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
    rows = [line.split("|") for line in page.partition("## Preemption or failure")[2].partition("## ")[0].splitlines()]
    causes = {row[3].strip(" `"): row[2].strip().startswith("preemption") for row in rows if len(row) == 5}
    causes = {cause: judged for cause, judged in causes.items() if cause not in ("cause", "---")}
    assert causes == {cause.value: cause.is_preemption for cause in Cause}
