"""Determine from flags and environment which hosts form this replica, and which one this is.

A replica is one slice: its hosts form one gang, and host 0 is the primary. The first of these
sources wins; if two contradict each other, the error names both:

1. `--hosts a,b,c` with `--host_ordinal`: all hosts, the primary first. A machine may be named
   several times. If all names are loopback, everything runs on this machine and the cluster
   variables (4 to 7) are ignored.
2. `--hosts 3`: the count; names and ordinal come from the environment.
3. Our own variables, for any machine:
     SAX_HOSTS             as --hosts: a list or a count
     SAX_HOST_ORDINAL      as --host_ordinal
     SAX_PRIMARY           host name or address of host 0 (e.g. a JobSet's coordinator)
4. TPU, as GKE and LeaderWorkerSet set them:
     TPU_WORKER_HOSTNAMES  every host of the slice, comma-separated
     TPU_PROCESS_ADDRESSES the same as host:port
     TPU_WORKER_ID         this host's ordinal
5. LeaderWorkerSet:
     LWS_LEADER_ADDRESS    host 0
     LWS_GROUP_SIZE        the count
     LWS_WORKER_INDEX      this host's ordinal
6. JobSet, one per replica. It does not say how many pods a job has, so SAX_HOSTS (or --hosts N)
   must. The primary is SAX_PRIMARY, or derived from the host name `<js>-<rj>-<job>-<pod>`:
     JOB_COMPLETION_INDEX  this host's ordinal
     SAX_SUBDOMAIN         the subdomain of the pods; by default
     JOBSET_NAME           the JobSet's name, which is its subdomain unless set otherwise
7. An indexed Job by itself: as 6, with the host name `<job>-<index>` and SAX_SUBDOMAIN.

Without any of these: one host. JOB_COMPLETION_INDEX alone is one host too, because the pods of a
Job may be replicas of their own. An empty variable counts as unset. MEGASCALE_NUM_SLICES,
MEGASCALE_SLICE_ID and MEGASCALE_COORDINATOR_ADDRESS do not enlarge the gang: they join slices
into one job, and a replica is one slice.

Pure: the caller passes the environment and the host name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sax.errors import InvalidRequest
from sax.host import is_loopback

MOST_HOSTS = 4096  # more than the largest slice has
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def read_host(text: str, where: str) -> str:
    """Parse a host name or an address, without brackets or port. Raises InvalidRequest."""
    text = text.strip()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _NAME.fullmatch(bare) or _is_address(bare):
        return bare
    raise InvalidRequest(
        f"{where}: {text!r} is not a host: give a host name or an address, without a port (the "
        "hosts meet at --group_port)",
        param=where,
    )


def read_hosts(text: str, where: str) -> tuple[str, ...]:
    """Parse a comma-separated list of hosts. Raises InvalidRequest."""
    return _bounded(tuple(read_host(word, where) for word in text.split(",")), where)


def read_processes(text: str, where: str) -> tuple[str, ...]:
    """Parse a comma-separated list of host:port and return the hosts. Raises InvalidRequest."""
    return _bounded(tuple(read_host(_drop_port(word), where) for word in text.split(",")), where)


def read_number(environ: Mapping[str, str], name: str) -> int | None:
    """Parse a variable as a number; None if unset or empty. Raises InvalidRequest."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(
            f"{name}={text!r} is not a number: set it to one, or unset it", param=name
        )
    return int(text)


def siblings(primary: str, count: int) -> tuple[str, ...]:
    """Derive all host names from the primary's: a-0.b gives a-1.b, any other form "host 1"."""
    label, dot, domain = primary.partition(".")
    stem, dash, last = label.rpartition("-")
    if dash and last == "0":
        return tuple(f"{stem}-{index}{dot}{domain}" for index in range(count))
    return (primary, *(f"host {index}" for index in range(1, count)))


def check_count(count: int, where: str) -> int:
    """Return the count if a replica can have that many hosts. Raises InvalidRequest."""
    if not 1 <= count <= MOST_HOSTS:
        raise InvalidRequest(
            f"{where} is {count}: a replica has 1 to {MOST_HOSTS} hosts", param=where
        )
    return count


def _bounded(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    check_count(len(names), where)
    return names


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _drop_port(word: str) -> str:
    host, colon, port = word.strip().rpartition(":")
    return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else word


@dataclass(frozen=True, slots=True)
class Membership:
    """One host's place in its gang."""

    count: int
    ordinal: int  # of this host; 0 is the primary
    primary: str  # host name or address of the primary, no port and no brackets
    names: tuple[str, ...]  # of every host, in order, for messages
    source: str  # where it was read, for messages


ALONE = Membership(1, 0, "127.0.0.1", ("127.0.0.1",), "nothing")


@dataclass(frozen=True, slots=True)
class _NamedHosts:
    """Number of hosts from our own flags and variables, and their names where given."""

    count: int
    names: tuple[str, ...]
    where: str


def membership(
    hosts: str, ordinal: int | None, environ: Mapping[str, str], hostname: str
) -> Membership:
    """Return this process's gang; `hostname` is this host's own.

    Raises InvalidRequest that names the flag or variable at fault.
    """
    wanted = _wanted(hosts, environ)
    cluster = _cluster(wanted, environ, hostname)
    count = wanted.count if wanted else len(cluster.names) if cluster else 1
    ordinals = _ordinals(ordinal, environ, cluster)
    if count == 1:
        return _alone(wanted, ordinals, environ, hostname)
    ours, ordinal_in = _ordinal(ordinals, count, wanted)
    names, names_in = _names(count, wanted, cluster, environ)
    source = " and ".join(dict.fromkeys((names_in, ordinal_in))) + _slices(environ)
    return Membership(count, ours, names[0], names, source)


def _wanted(hosts: str, environ: Mapping[str, str]) -> _NamedHosts | None:
    given = [_parse(hosts, "--hosts")] if hosts else []
    if text := environ.get("SAX_HOSTS", "").strip():
        given.append(_parse(text, "SAX_HOSTS"))
    if len(given) == 2:
        flag, variable = given
        if flag.count != variable.count:
            raise _counts_differ(flag, variable.count, "SAX_HOSTS")
        if flag.names and variable.names and flag.names != variable.names:
            raise InvalidRequest(
                "--hosts and SAX_HOSTS name different hosts: give only one of them",
                param="SAX_HOSTS",
            )
    return next((each for each in given if each.names), given[0] if given else None)


def _parse(text: str, where: str) -> _NamedHosts:
    text = text.strip()
    sign, digits = text[:1] == "-", text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return _NamedHosts(check_count(-int(digits) if sign else int(digits[:9]), where), (), where)
    names = read_hosts(text, where)
    return _NamedHosts(len(names), names, where)


def _cluster(
    wanted: _NamedHosts | None, environ: Mapping[str, str], host: str
) -> ClusterFacts | None:
    if wanted and wanted.names and all(map(is_loopback, wanted.names)):
        return None
    cluster = told(environ, host, wanted.count if wanted else None)
    if wanted and cluster and cluster.names and len(cluster.names) != wanted.count:
        raise _counts_differ(wanted, len(cluster.names), cluster.names_in)
    return cluster


def _counts_differ(wanted: _NamedHosts, count: int, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{wanted.where} says {wanted.count} hosts, {where} says {count}: make them agree, or give "
        "only one of them",
        param=wanted.where,
    )


def _ordinals(
    flag: int | None, environ: Mapping[str, str], cluster: ClusterFacts | None
) -> list[tuple[int, str]]:
    """Collect every statement of this host's ordinal, strongest first. Raises if two differ."""
    said = (
        (flag, "--host_ordinal"),
        (read_number(environ, "SAX_HOST_ORDINAL"), "SAX_HOST_ORDINAL"),
        (cluster.ordinal, cluster.ordinal_in) if cluster else (None, ""),
    )
    ordinals = [(value, where) for value, where in said if value is not None]
    for value, where in ordinals[1:]:
        if value != ordinals[0][0]:
            raise InvalidRequest(
                f"{ordinals[0][1]} says that this is host {ordinals[0][0]}, {where} says "
                f"host {value}: make them agree, or give only one of them",
                param=ordinals[0][1],
            )
    return ordinals


def _alone(
    wanted: _NamedHosts | None,
    ordinals: list[tuple[int, str]],
    environ: Mapping[str, str],
    host: str,
) -> Membership:
    said = [*ordinals, (0, "SAX_PRIMARY")] if environ.get("SAX_PRIMARY", "").strip() else ordinals
    for value, where in said:
        if value != 0 or (where == "SAX_PRIMARY" and wanted is None):
            raise InvalidRequest(
                f"{where} is set, but nothing says that there are several hosts: give --hosts "
                f"or SAX_HOSTS, or leave {where} out",
                param=where,
            )
    name = wanted.names[0] if wanted and wanted.names else host
    source = wanted.where if wanted else "no other hosts configured"
    return Membership(1, 0, name, (name,), source + _slices(environ))


def _ordinal(
    ordinals: list[tuple[int, str]], count: int, wanted: _NamedHosts | None
) -> tuple[int, str]:
    if not ordinals:
        raise InvalidRequest(
            f"there are {count} hosts, but nothing says which of them this is: give --host_ordinal "
            f"or SAX_HOST_ORDINAL, from 0 (the primary) to {count - 1}",
            param="--host_ordinal",
        )
    value, where = ordinals[0]
    if not 0 <= value < count:
        said = f"{wanted.where} says {count} hosts" if wanted else f"there are {count} hosts"
        raise InvalidRequest(
            f"{where} is {value}, but {said}: they are numbered from 0 to {count - 1}", param=where
        )
    return value, where


def _names(
    count: int, wanted: _NamedHosts | None, cluster: ClusterFacts | None, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    text = environ.get("SAX_PRIMARY", "").strip()
    primary = read_host(text, "SAX_PRIMARY") if text else ""
    if wanted and wanted.names:
        if primary and primary != wanted.names[0]:
            raise InvalidRequest(
                f"{wanted.where} begins with {wanted.names[0]}, but SAX_PRIMARY is {primary}: host "
                "0 is the primary, so make them agree or leave SAX_PRIMARY out",
                param="SAX_PRIMARY",
            )
        return wanted.names, wanted.where
    known = cluster.names if cluster else ()
    if primary:
        _check_same_job(primary, known)
        return (primary, *(known or siblings(primary, count))[1:]), "SAX_PRIMARY"
    if cluster and known:
        return known, cluster.names_in
    raise InvalidRequest(
        f"there are {count} hosts, but nothing says which is the primary: set SAX_PRIMARY to its "
        "host name; in a Job whose pods keep their own host names SAX_SUBDOMAIN, the name of "
        "their headless Service, is enough; or name all hosts with --hosts",
        param="SAX_PRIMARY",
    )


def _check_same_job(primary: str, known: tuple[str, ...]) -> None:
    """Reject a coordinator from another job: every job of a JobSet would take the same one."""
    if not known:
        return
    theirs, ours = (name.partition(".")[0].rsplit("-", 2) for name in (primary, known[0]))
    if len(theirs) == len(ours) == 3 and theirs[0] == ours[0] and theirs[1] != ours[1]:
        raise InvalidRequest(
            f"SAX_PRIMARY is {primary}, a pod of another job of this JobSet than that of "
            f"{known[0]}: every replica has a primary of its own, so make one JobSet per replica, "
            "or leave SAX_PRIMARY out and set SAX_SUBDOMAIN",
            param="SAX_PRIMARY",
        )


def _slices(environ: Mapping[str, str]) -> str:
    count = environ.get("MEGASCALE_NUM_SLICES", "").strip()
    if count in ("", "1"):
        return ""
    return f" (MEGASCALE_NUM_SLICES={count} is ignored: a replica is one slice)"


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
