"""The pods inside of what makes pods: Deployments, Jobs, JobSets, LeaderWorkerSets. Pure."""

from __future__ import annotations

from sax.kubernetes.fields import Object, number, part, parts


def template_of(thing: Object) -> Object:
    """The pod's template, to look at or to change; {} if there is none."""
    spec = part(thing, "spec")
    for job in parts(spec, "replicatedJobs"):
        return part(job, "template", "spec", "template")
    return part(spec, "leaderWorkerTemplate", "workerTemplate") or part(spec, "template")


def pod_of(thing: Object) -> Object:
    """The pod's spec; of a pod its own."""
    return part(template_of(thing), "spec") or part(thing, "spec")


def replicas_of(thing: Object) -> int:
    """How many replicas of a model it makes, one if it does not say."""
    jobs = parts(thing, "spec", "replicatedJobs")
    return sum(map(_count, jobs)) if jobs else _count(part(thing, "spec"))


def _count(spec: Object) -> int:
    return number(spec, "replicas") if "replicas" in spec else 1
