"""Pod templates inside Deployments, Jobs, JobSets and LeaderWorkerSets. Pure."""

from __future__ import annotations

from k8s.render.fields import Object, number, part, parts


def template_of(thing: Object) -> Object:
    """Return the pod template, by reference; {} if there is none."""
    spec = part(thing, "spec")
    for job in parts(spec, "replicatedJobs"):
        return part(job, "template", "spec", "template")
    return part(spec, "leaderWorkerTemplate", "workerTemplate") or part(spec, "template")


def pod_of(thing: Object) -> Object:
    return part(template_of(thing), "spec") or part(thing, "spec")


def replicas_of(thing: Object) -> int:
    """Return the number of model replicas; one if the object does not say."""
    jobs = parts(thing, "spec", "replicatedJobs")
    return sum(map(_count, jobs)) if jobs else _count(part(thing, "spec"))


def _count(spec: Object) -> int:
    return number(spec, "replicas") if "replicas" in spec else 1
