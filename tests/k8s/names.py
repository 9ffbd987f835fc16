"""What webhooks refuse beyond schemas: above all names that get too long once there are pods.

The API server, and the webhooks of JobSet and LeaderWorkerSet, compute the longest name that an
object will lead to and refuse the object. So does this, by their rules. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from k8s.render.pathways.expansion import jobset_of
from tests.k8s.finding import Finding, title_of
from tests.k8s.pods import coordinator_of

Json = Mapping[str, Any]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_1123 = re.compile(_LABEL)
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_FAILURE_REASONS = {
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
}
_MOST = 63
_REVISION = 11  # a dash and the hash in the label controller-revision-hash
_SUFFIX = "-abcde"  # what a Job's controller puts behind a pod's name


def check_names(each: Json) -> Iterator[Finding]:
    """Everything about the names in one object, and those that it leads to."""
    title, name = title_of(dict(each)), each["metadata"]["name"]
    yield from _matches(title, "its name", name, _SUBDOMAIN, 253)
    yield from _labels(title, each)
    match each["kind"]:
        case "Service":
            yield from _matches(title, "its name", name, _DNS_1035)
        case "Job":
            yield from _job(title, name, each["spec"])
        case "JobSet":
            yield from _jobset(title, each)
        case "PathwaysJob":
            yield from _jobset(title, jobset_of(dict(each)))
        case "LeaderWorkerSet":
            yield from _leader_worker_set(title, name, each["spec"])


def _matches(
    title: str, what: str, text: str, form: re.Pattern[str], most: int = _MOST
) -> Iterator[Finding]:
    if len(text) > most:
        yield Finding(title, f"{what} {text} has {len(text)} characters, {most} at most")
    if not form.fullmatch(text):
        yield Finding(title, f"{what} {text!r} must match {form.pattern}")


def _labels(title: str, each: Any) -> Iterator[Finding]:
    """All labels anywhere in the object, also those of templates and selectors."""
    if isinstance(each, list):
        for item in each:
            yield from _labels(title, item)
    elif isinstance(each, Mapping):
        for key, value in each.items():
            if key in ("labels", "matchLabels") and isinstance(value, Mapping):
                for name, text in value.items():
                    yield from _matches(title, "label", name, _LABEL_KEY, 317)
                    yield from _matches(title, f"label {name}", str(text), _LABEL_VALUE)
            else:
                yield from _labels(title, value)


def _job(title: str, name: str, spec: Json) -> Iterator[Finding]:
    yield from _matches(title, "its name", name, _DNS_1123)
    if spec.get("completionMode") == "Indexed":
        last = spec.get("completions", 1) - 1
        yield from _matches(title, "the host name", f"{name}-{last}", _DNS_1123)


def _jobset(title: str, jobset: Json) -> Iterator[Finding]:
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    network = spec.get("network") or {}
    yield from _matches(title, "the subdomain", network.get("subdomain") or name, _DNS_1035)
    for job in spec["replicatedJobs"]:
        longest = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}"
        yield from _matches(title, "the job name", longest, _DNS_1035)
        last = job["template"]["spec"].get("completions", 1) - 1
        yield from _matches(title, "the pod name", f"{longest}-{last}{_SUFFIX}", _DNS_1035)
        if group := job.get("groupName"):
            yield from _matches(title, "the group name", group, _DNS_1035)
    if spec["replicatedJobs"][0].get("dependsOn"):
        yield Finding(title, "the first replicatedJob cannot depend on another")
    if coordinator := spec.get("coordinator"):
        yield from _coordinator(title, jobset, coordinator)
    yield from _failure_policy(title, spec)


def _coordinator(title: str, jobset: Json, coordinator: Json) -> Iterator[Finding]:
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    job = jobs.get(coordinator["replicatedJob"])
    if job is None:
        yield Finding(title, f"coordinator: no replicatedJob {coordinator['replicatedJob']}")
        return
    own = job["template"]["spec"]
    for field, count in (("jobIndex", job.get("replicas", 1)), ("podIndex", own["completions"])):
        if not 0 <= coordinator.get(field, 0) < count:
            yield Finding(title, f"coordinator: {field} must be below {count}")
    yield from _matches(title, "the coordinator", coordinator_of(jobset, coordinator), _LABEL_VALUE)


def _failure_policy(title: str, spec: Json) -> Iterator[Finding]:
    jobs = {job["name"] for job in spec["replicatedJobs"]}
    rules = (spec.get("failurePolicy") or {}).get("rules", ())
    names = [rule.get("name", "") for rule in rules]
    for rule in rules:
        name = rule.get("name", "default")
        if not _RULE_NAME.fullmatch(name) or len(name) > 128:
            yield Finding(
                title, f"failurePolicy: rule name {name!r} must match {_RULE_NAME.pattern}"
            )
        if names.count(name) > 1:
            yield Finding(title, f"failurePolicy: the rule name {name} is there twice")
        for job in set(rule.get("targetReplicatedJobs", ())) - jobs:
            yield Finding(title, f"failurePolicy: no replicatedJob {job}")
        for reason in set(rule.get("onJobFailureReasons", ())) - _FAILURE_REASONS:
            yield Finding(title, f"failurePolicy: {reason} is no reason of a failed Job")
        if rule.get("action", "").startswith("RestartJob") and "JobSet" not in rule["action"]:
            yield Finding(title, f"failurePolicy: {rule['action']} is behind a feature gate")


def _leader_worker_set(title: str, name: str, spec: Json) -> Iterator[Finding]:
    last = spec.get("replicas", 1) - 1
    size = spec["leaderWorkerTemplate"].get("size", 1)
    yield from _matches(title, "its name", name, _DNS_1035)
    yield from _matches(title, "the pod name", f"{name}-{max(last, 0)}-{size - 1}", _DNS_1035)
    rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    if rolling.get("maxUnavailable", 1) == 0 == rolling.get("maxSurge", 0):
        yield Finding(title, "maxUnavailable and maxSurge cannot both be 0")
    # A StatefulSet of this name labels its pods with the name and a hash.
    most = _MOST - _REVISION
    yield from _matches(title, "the group name", f"{name}-{max(last, 0)}", _DNS_1035, most)
