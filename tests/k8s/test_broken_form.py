"""The checks of form and names find what is wrong: each case breaks one thing."""

from __future__ import annotations

import pytest

from tests.k8s.breaking import (
    GATEWAY,
    GROUPS,
    PATHWAYS,
    TUTORIAL,
    Case,
    found_in,
    jobset,
    main,
    one,
    pod,
    put,
    rename,
    second_job,
)
from tests.k8s.schemas import NO_CRDS, custom_schemas

CASES: dict[str, Case] = {
    "a wrong type in a core kind": (
        TUTORIAL,
        lambda o: put(one(o, "Deployment")["spec"], replicas="two"),
        "'two'",
    ),
    "an unknown field in a core kind": (
        TUTORIAL,
        lambda o: put(pod(o, "Deployment"), nodeSelecter={}),
        "nodeSelecter",
    ),
    "a required field of a core kind that is missing": (
        TUTORIAL,
        lambda o: one(o, "Service")["spec"]["ports"][0].pop("port"),
        "port",
    ),
    "a wrong type in a custom kind": (
        TUTORIAL,
        lambda o: put(jobset(o)["replicatedJobs"][0], replicas="2"),
        "'2' is not of type 'integer'",
    ),
    "an unknown field in a custom kind": (
        TUTORIAL,
        lambda o: put(jobset(o), replicas=2),
        "'replicas' was unexpected",
    ),
    "an unknown field deep in the pod of a custom kind": (
        GROUPS,
        lambda o: put(main(o, "LeaderWorkerSet")["securityContext"], dropAll=True),
        "'dropAll' was unexpected",
    ),
    "a value that is not in the list": (
        TUTORIAL,
        lambda o: put(jobset(o)["failurePolicy"]["rules"][0], action="Restart"),
        "'Restart' is not one of",
    ),
    "an unknown field of the metadata of a custom kind": (
        TUTORIAL,
        lambda o: put(one(o, "JobSet")["metadata"], label={}),
        "unknown field 'label'",
    ),
    "an unknown machine of a PathwaysJob": (
        PATHWAYS,
        lambda o: put(one(o, "PathwaysJob")["spec"]["workers"][0], type="ct7-mega"),
        "'ct7-mega' is not one of",
    ),
    "a key of a list that comes twice": (
        TUTORIAL,
        lambda o: main(o)["ports"].append({"containerPort": 10001}),
        "[10001, 'TCP'] is there twice",
    ),
    "a rule in CEL, with a default that it needs": (
        GATEWAY,
        lambda o: one(o, "InferencePool")["spec"]["endpointPickerRef"].pop("port"),
        "port",
    ),
    "a rule in CEL about two fields": (TUTORIAL, second_job, "mutually exclusive"),
    "a rule in CEL that counts": (
        GATEWAY,
        lambda o: one(o, "InferencePool")["spec"]["targetPorts"].append({"number": 8888}),
        "unique",
    ),
    "a JobSet whose pods get names that are too long": (
        TUTORIAL,
        lambda o: rename(o, "JobSet", "s" * 37),
        "64 characters, 63 at most",
    ),
    "a JobSet whose hosts reach two digits": (
        TUTORIAL,
        lambda o: [
            rename(o, "JobSet", "s" * 36),
            put(jobset(o)["replicatedJobs"][0]["template"]["spec"], completions=16),
        ],
        "64 characters, 63 at most",
    ),
    "a JobSet whose name begins with a digit": (
        TUTORIAL,
        lambda o: put(one(o, "JobSet")["metadata"], name="7b"),
        "must match",
    ),
    "a coordinator that is not there": (
        TUTORIAL,
        lambda o: put(jobset(o), coordinator={"replicatedJob": "sax-model-server", "podIndex": 8}),
        "podIndex must be below 8",
    ),
    "a coordinator that is too long for a label": (
        TUTORIAL,
        lambda o: [
            rename(o, "JobSet", "s" * 30),
            put(jobset(o), coordinator={"replicatedJob": "sax-model-server"}),
        ],
        "the coordinator",
    ),
    "a name of a failure rule with a dash": (
        TUTORIAL,
        lambda o: put(jobset(o)["failurePolicy"]["rules"][0], name="host-taken"),
        "rule name 'host-taken'",
    ),
    "a failure rule for a job that is not there": (
        TUTORIAL,
        lambda o: put(jobset(o)["failurePolicy"]["rules"][0], targetReplicatedJobs=["b"]),
        "no replicatedJob b",
    ),
    "an action behind a feature gate": (
        TUTORIAL,
        lambda o: put(jobset(o)["failurePolicy"]["rules"][0], action="RestartJob"),
        "feature gate",
    ),
    "a LeaderWorkerSet with a long name": (
        GROUPS,
        lambda o: put(one(o, "LeaderWorkerSet")["metadata"], name="s" * 52),
        "52 at most",
    ),
    "a LeaderWorkerSet that cannot roll": (
        GROUPS,
        lambda o: put(
            one(o, "LeaderWorkerSet")["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"],
            maxUnavailable=0,
        ),
        "cannot both be 0",
    ),
    "a PathwaysJob with a long name": (
        PATHWAYS,
        lambda o: put(one(o, "PathwaysJob")["metadata"], name="s" * 40),
        "at most",
    ),
    "a Service whose name begins with a digit": (
        TUTORIAL,
        lambda o: put(one(o, "Service", "sax-http-lb")["metadata"], name="8lb"),
        "'8lb' must match",
    ),
    "a label that is too long": (
        TUTORIAL,
        lambda o: put(one(o, "JobSet")["metadata"]["labels"], team="b" * 64),
        "64 characters",
    ),
}
# What is found without the schemas of custom kinds.
CORE = {name for name in CASES if "core kind" in name or "name" in name or "label" in name}


@pytest.mark.parametrize("case", CASES)
def test_it_is_found(case: str) -> None:
    if not custom_schemas() and case not in CORE:
        pytest.skip(NO_CRDS)
    found = found_in(CASES[case])
    assert any(CASES[case][2] in text for text in found), found
