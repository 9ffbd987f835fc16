"""Read a replica's hosts from the environment variables that clusters set.

One reader per kind of cluster; `membership` lists the variables. A cluster of a single host yields
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_server.multihost.hostnames import check_count, read_number, read_processes, siblings
from sax.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """One cluster's account of the hosts; without names only this host's ordinal is known."""

    names: tuple[str, ...]
    names_in: str  # the variable that holds them, or their count
    ordinal: int | None
    ordinal_in: str


def told(environ: Mapping[str, str], host: str, count: int | None) -> ClusterFacts | None:
    """Return the account of the first cluster that gives one.

    count: the number of hosts from our own flags. Raises InvalidRequest for variables that are
    incomplete or contradict each other.
    """
    # TPU variables first: a LeaderWorkerSet may have a leader without TPUs, which LWS_GROUP_SIZE
    # counts and TPU_WORKER_HOSTNAMES does not.
    return _tpu(environ, count) or _leader_worker_set(environ) or _job(environ, host, count)


def _tpu(environ: Mapping[str, str], count: int | None) -> ClusterFacts | None:
    ordinal = read_number(environ, "TPU_WORKER_ID")
    names, where = _tpu_names(environ)
    if len(names) > 1:
        return _checked(ClusterFacts(names, where, ordinal, "TPU_WORKER_ID"))
    if names or ordinal is None:
        return None
    if ordinal and count is None:
        raise InvalidRequest(
            f"TPU_WORKER_ID={ordinal} implies several hosts, but neither TPU_WORKER_HOSTNAMES nor "
            "TPU_PROCESS_ADDRESSES names them: set one of them, or give --hosts",
            param="TPU_WORKER_HOSTNAMES",
        )
    return ClusterFacts((), "", ordinal, "TPU_WORKER_ID") if count and count > 1 else None


def _tpu_names(environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    found = [
        (read_processes(environ[name], name), name)
        for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
        if environ.get(name, "").strip()
    ]
    if len(found) == 2 and len(found[0][0]) != len(found[1][0]):
        raise InvalidRequest(
            f"TPU_WORKER_HOSTNAMES names {len(found[0][0])} hosts, but TPU_PROCESS_ADDRESSES "
            f"{len(found[1][0])} processes: make them agree (one process per host)",
            param="TPU_PROCESS_ADDRESSES",
        )
    return found[0] if found else ((), "")


def _leader_worker_set(environ: Mapping[str, str]) -> ClusterFacts | None:
    size = read_number(environ, "LWS_GROUP_SIZE")
    if size is None or check_count(size, "LWS_GROUP_SIZE") == 1:
        return None
    ordinal = read_number(environ, "LWS_WORKER_INDEX")
    if not environ.get("LWS_LEADER_ADDRESS", "").strip():
        raise InvalidRequest(
            f"LWS_GROUP_SIZE is {size} but LWS_LEADER_ADDRESS is not set: set it too, or unset "
            "LWS_GROUP_SIZE (a LeaderWorkerSet sets both)",
            param="LWS_LEADER_ADDRESS",
        )
    (leader,) = read_processes(environ["LWS_LEADER_ADDRESS"].strip(), "LWS_LEADER_ADDRESS")[:1]
    names = _workers(leader, size)
    return _checked(ClusterFacts(names, "LWS_GROUP_SIZE", ordinal, "LWS_WORKER_INDEX"))


def _workers(leader: str, size: int) -> tuple[str, ...]:
    label, dot, domain = leader.partition(".")
    return (leader, *(f"{label}-{index}{dot}{domain}" for index in range(1, size)))


def _job(environ: Mapping[str, str], host: str, count: int | None) -> ClusterFacts | None:
    """Read an indexed Job, in a JobSet or alone: it numbers its pods but does not say how many."""
    ordinal = read_number(environ, "JOB_COMPLETION_INDEX")
    if ordinal is None or count is None or count == 1:
        return None
    pod, _, domain = host.partition(".")
    stem, _, last = pod.rpartition("-")
    subdomain = environ.get("SAX_SUBDOMAIN") or environ.get("JOBSET_NAME") or domain
    # With hostNetwork the host name is the node's and says nothing about the Job.
    known = stem and last == str(ordinal) and subdomain
    names = siblings(f"{stem}-0.{subdomain}", count) if known else ()
    return ClusterFacts(names, "the pod's host name", ordinal, "JOB_COMPLETION_INDEX")


def _checked(said: ClusterFacts) -> ClusterFacts:
    if said.ordinal is not None and said.ordinal >= len(said.names):
        raise InvalidRequest(
            f"{said.ordinal_in}={said.ordinal}, but {said.names_in} gives {len(said.names)} "
            f"hosts, numbered from 0: correct one of them",
            param=said.ordinal_in,
        )
    return said
