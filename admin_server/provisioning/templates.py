"""Templates of model servers: manifests of a JobSet or LeaderWorkerSet with one replica each.

Parses from a manifest what its servers will have (hosts, devices, tags), and renders the object
that serves a model.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml

from admin_server.ledger.placement import MODEL_TAG
from admin_server.provisioning.cluster import (
    JOBSET,
    KINDS,
    Body,
    ObjectKind,
    annotations_of,
    labels_of,
    part,
    parts,
    words,
)
from admin_server.provisioning.object_names import (
    DEVICES,
    LONGEST,
    MEMORY,
    MODEL,
    MODELS,
    SET_TAG,
    TEMPLATE,
    TEMPLATE_HASH,
    cell_labels,
    content_hash,
)
from sax.errors import InvalidRequest
from sax.names import CellId

CONTAINER = "sax-model-server"
_CHIPS = ("google.com/tpu", "nvidia.com/gpu", "amd.com/gpu")
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SHORTEST = 24  # letters: parts of the template's and the model's name, and the numbers
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# A StatefulSet's name plus its revision hash is one label; the hosts' StatefulSet adds -0.
_LONGEST_LEADER_WORKER_SET = 50


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    kind: ObjectKind
    devices: int  # of one replica, over all hosts
    tags: frozenset[str]
    patterns: tuple[str, ...]  # for model ids; empty: any
    memory: int  # total bytes of all devices; 0: unknown
    longest: int  # characters of an object's name
    body: Body
    hash: str

    def is_for(self, model_id: str) -> bool:
        return not self.patterns or any(fnmatchcase(model_id, each) for each in self.patterns)


@dataclass(frozen=True, slots=True)
class Pods:
    """A group of identical pods of a replica."""

    count: int
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return parts(self.spec, "containers")

    @property
    def servers(self) -> list[dict[str, Any]]:
        return [each for each in self.containers if each.get("name") == CONTAINER]

    @property
    def chips(self) -> int:
        return self.count * sum(map(_chips_of, self.containers))


def parse_template(text: str, file: str) -> Template:
    """Raises InvalidRequest with the file's name and what is wrong."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise _Wrong("is not one YAML document with one object: use one object per file")
        return _read(cast("dict[str, Any]", documents[0]))
    except yaml.YAMLError as exc:
        raise _bad(file, f"is not valid YAML: {' '.join(str(exc).split())}") from exc
    except _Wrong as exc:
        raise _bad(file, str(exc)) from exc
    except (TypeError, ValueError, KeyError) as exc:
        raise _bad(file, f"does not have the structure of its kind: {exc}") from exc


def object_for(template: Template, model_id: str, name: str, cell: CellId) -> dict[str, Any]:
    body = copy.deepcopy(dict(template.body))
    metadata = body["metadata"]
    metadata["name"] = name
    metadata["labels"] = {**labels_of(body), **cell_labels(cell)}
    metadata["annotations"] = {
        **annotations_of(body),
        MODEL: model_id,
        TEMPLATE: template.name,
        TEMPLATE_HASH: template.hash,
        DEVICES: str(template.devices),
    }
    for pods in pods_of(template.kind, body):
        for server in pods.servers:
            _add_tags(server, f"{MODEL_TAG}{model_id},{SET_TAG}{name}")
    return body


class _Wrong(Exception):
    """A manifest is invalid."""


def _bad(file: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"the template {file} {why}", param="kubernetes")


def _read(body: dict[str, Any]) -> Template:
    kind, name = _kind_of(body), str(part(body, "metadata").get("name", ""))
    if not _LABEL.fullmatch(name):
        raise _Wrong(
            f"has the metadata.name {name!r}: use lower-case letters, digits and dashes, a "
            "letter first; objects are named after it"
        )
    _check_replicas(kind, body)
    pods = list(pods_of(kind, body))
    tags, longest = _checked_tags(pods), _longest_name(kind, body)
    if longest < _SHORTEST:
        raise _Wrong(
            f"leaves {longest} characters for the name of an object: give its replicatedJobs "
            "shorter names; pod names are limited to 63 characters"
        )
    annotations = annotations_of(body)
    patterns = str(annotations.get(MODELS, "")).split(",")
    return Template(
        name=name,
        kind=kind,
        devices=sum(some.chips for some in pods)
        or sum(some.count for some in pods if some.servers),
        tags=tags,
        patterns=tuple(each.strip() for each in patterns if each.strip()),
        memory=_bytes(str(annotations.get(MEMORY, "0"))),
        longest=longest,
        body=body,
        hash=content_hash(json.dumps(body, sort_keys=True, default=str)),
    )


def _checked_tags(pods: Sequence[Pods]) -> frozenset[str]:
    """Tags of its servers; there must be at least one server."""
    servers = [server for some in pods for server in some.servers]
    if not servers:
        raise _Wrong(f"has no container named {CONTAINER}, which is the one that gets the tags")
    tags = frozenset(tag for server in servers for tag in _tags_of(server))
    if ours := sorted(tag for tag in tags if tag.startswith((MODEL_TAG, SET_TAG))):
        raise _Wrong(f"has the tag {ours[0]}: the admin server itself adds it to every object")
    return tags


def _kind_of(body: Body) -> ObjectKind:
    said = (body.get("apiVersion"), body.get("kind"))
    for kind in KINDS:
        if said == (kind.api_version, kind.kind):
            return kind
    known = " or ".join(f"{kind.api_version} {kind.kind}" for kind in KINDS)
    raise _Wrong(f"is a {said[0]} {said[1]}: use a {known}")


def _check_replicas(kind: ObjectKind, body: Body) -> None:
    """One object must be one replica, because it is created and deleted as a whole."""
    spec = part(body, "spec")
    if kind is not JOBSET:
        if _count(spec.get("replicas")) != 1:
            raise _Wrong(
                f"has spec.replicas {spec['replicas']}: use 1; the admin server creates one "
                "object per replica"
            )
        return
    if part(spec, "network").get("subdomain"):
        raise _Wrong("sets spec.network.subdomain: leave it out, each JobSet has its own")
    jobs = parts(spec, "replicatedJobs")
    serving = [job for job in jobs if Pods(1, _pod_spec(_job(job))).servers]
    if len(serving) > 1 or any(_count(job.get("replicas")) != 1 for job in serving):
        raise _Wrong(
            f"has more than one Job with a container {CONTAINER}: use one replicatedJob with "
            "replicas 1; the admin server creates one JobSet per replica"
        )


def pods_of(kind: ObjectKind, body: Body) -> Iterator[Pods]:
    spec = part(body, "spec")
    if kind is JOBSET:
        for job in parts(spec, "replicatedJobs"):
            count = _count(job.get("replicas")) * _hosts_of(_job(job))
            yield Pods(count, _pod_spec(_job(job)))
        return
    group = part(spec, "leaderWorkerTemplate")
    size, leader = _count(group.get("size")), part(group, "leaderTemplate")
    if leader:
        yield Pods(1, part(leader, "spec"))
    yield Pods(size - bool(leader), part(part(group, "workerTemplate"), "spec"))


def _longest_name(kind: ObjectKind, body: Body) -> int:
    """The longest object name that leaves space for what is appended."""
    spec = part(body, "spec")
    if kind is not JOBSET:
        return _LONGEST_LEADER_WORKER_SET
    longest = LONGEST
    for job in parts(spec, "replicatedJobs"):
        last_job = _count(job.get("replicas")) - 1
        host = f"-{job['name']}-{last_job}-{_hosts_of(_job(job)) - 1}"
        longest = min(longest, LONGEST - len(f"{host}-xxxxx"))
        if spec.get("coordinator"):  # one label is HOST.NAME, where HOST starts with NAME
            longest = min(longest, (LONGEST - len(f"{host}.")) // 2)
    return longest


def _job(job: Body) -> dict[str, Any]:
    return part(part(job, "template"), "spec")


def _pod_spec(job: Body) -> dict[str, Any]:
    return part(part(job, "template"), "spec")


def _hosts_of(job: Body) -> int:
    return _count(job.get("parallelism") or job.get("completions"))


def _count(value: Any) -> int:
    number = 1 if value is None else int(value)
    if number < 1:
        raise _Wrong(f"asks for {number} pods somewhere: use 1 or more")
    return number


def _chips_of(container: Body) -> int:
    resources = part(container, "resources")
    asked = {**part(resources, "requests"), **part(resources, "limits")}
    return sum(int(asked.get(chip, 0)) for chip in _CHIPS)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})(Ki|Mi|Gi|Ti|)", text.strip())
    if not found:
        raise _Wrong(f"has the annotation {MEMORY} {text!r}: use bytes, as in 512Gi")
    return int(found[1]) * _UNITS[found[2]]


# The flag --tags, as one word or two


def _tags_of(container: Body) -> list[str]:
    text = ""
    for line in (words(container, "command"), words(container, "args")):
        place = _place_of_tags(line)
        text = line[place].removeprefix("--tags=") if place is not None else text
    return [tag.strip() for tag in text.split(",") if tag.strip()]


def _add_tags(container: dict[str, Any], more: str) -> None:
    for name in ("args", "command"):
        line = words(container, name)
        place = _place_of_tags(line)
        if place is not None:
            flag = "--tags=" if line[place].startswith("--tags=") else ""
            old = line[place].removeprefix(flag).strip()
            line[place] = flag + (f"{old},{more}" if old else more)
            return
    container["args"] = [*words(container, "args"), f"--tags={more}"]


def _place_of_tags(line: list[str]) -> int | None:
    """Index of the word holding the tags; the last --tags counts."""
    for place in range(len(line) - 1, -1, -1):
        if line[place].startswith("--tags="):
            return place
        if line[place] == "--tags" and place + 1 < len(line):
            return place + 1
    return None


_log = logging.getLogger(__name__)
_SUFFIXES = (".yaml", ".yml")
_Mark = tuple[tuple[str, int, int], ...]


class TemplateFolder:
    """The folder of templates on local disk, read again when a file in it changes.

    Holds the templates as of the last time all of them were valid. A mounted ConfigMap changes by a
    link whose name begins with two dots: such names are ignored.
    """

    def __init__(self, folder: str) -> None:
        """Raises InvalidRequest for an invalid folder or template."""
        self._folder = Path(folder)
        self._mark = self._look()
        self.templates = self._read()
        self.trouble = ""  # why the current files are not used

    def refresh(self) -> bool:
        """Read changes; True if there were any. Keeps the old templates if invalid."""
        try:
            mark = self._look()
            if mark == self._mark:
                return False
            self._mark = mark
            self.templates, self.trouble = self._read(), ""
        except InvalidRequest as exc:
            if self.trouble != exc.text:
                _log.error("%s; still using the previous templates", exc.text)
            self.trouble = exc.text
        return True

    def _look(self) -> _Mark:
        try:
            stats = [(path.name, path.stat()) for path in self._files()]
        except OSError as exc:
            raise _unreadable(self._folder, exc) from exc
        return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in self._folder.iterdir()
            if not path.name.startswith("..") and path.suffix in _SUFFIXES
        )

    def _read(self) -> tuple[Template, ...]:
        files: dict[str, str] = {}
        templates: list[Template] = []
        try:
            for path in self._files():
                template = parse_template(path.read_text(), path.name)
                if (other := files.setdefault(template.name, path.name)) != path.name:
                    raise InvalidRequest(
                        f"the templates {other} and {path.name} are both named {template.name}: "
                        "objects are named after their template",
                        param="kubernetes",
                    )
                templates.append(template)
        except (OSError, UnicodeDecodeError) as exc:
            raise _unreadable(self._folder, exc) from exc
        if not templates:
            raise InvalidRequest(
                f"there is no template (*.yaml) in {self._folder}: put a JobSet or a "
                "LeaderWorkerSet there, one per file",
                param="kubernetes",
            )
        return tuple(templates)


def _unreadable(folder: Path, exc: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the templates of model servers in {folder} cannot be read ({exc}): set --kubernetes "
        "to a folder of templates",
        param="kubernetes",
    )
