"""The checked options of `sax k8s render`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from k8s.render.bucket import StorageBucket
from k8s.render.image import ImageSource
from k8s.render.names import check_jobset, check_label, check_leader_worker_set
from k8s.render.pathways.expansion import HEAD_JOB, WORKER_JOB
from k8s.render.pathways.options import PathwaysOptions, check_machine
from sax.errors import InvalidRequest, MemoryPlanError, Unavailable
from sax.format import human_bytes
from sax.names import CellId, ModelId, check_model_path
from sax.slices import TpuSlice

KINDS = ("jobset", "one-jobset", "leaderworkerset")  # with a model server on every host
PATHWAYS, PATHWAYS_JOBSET = PATHWAYS_KINDS = ("pathways", "pathways-jobset")  # one for all hosts
PARTS = ("control", "servers", "all")
SET_NAME = "sax-model-server-set"
JOB_NAME = "sax-model-server"
FLEX_START, SPOT = "cloud.google.com/gke-flex-start", "cloud.google.com/gke-spot"
_MOST_REPLICAS = 1000
_EMAIL = re.compile(
    r"[a-z0-9][a-z0-9-]{0,62}@[a-z][a-z0-9.-]{0,120}\.(?:iam|developer)\.gserviceaccount\.com"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan that fits."""

    topology: str  # v5e:4x8
    path: str  # model path; auto: as the checkpoint's config.json says
    hosts: int
    weights: int  # bytes per device
    used: int  # bytes per device, in total
    limit: int  # bytes per device
    devices: int  # of the slice
    kv_tokens: int  # tokens that the page pool holds

    @property
    def weights_of_slice(self) -> int:
        """Bytes of weights on all devices; replicated weights count once per device."""
        return self.weights * self.devices

    def __str__(self) -> str:
        return (
            f"{human_bytes(self.weights, 1)} of weights and {human_bytes(self.used, 1)} in all, of "
            f"{human_bytes(self.limit, 1)}, on each of {self.devices} devices; room for "
            f"{self.kv_tokens:,} cached tokens"
        )


def read_plan(text: str) -> Planned:
    """Parse the plan's JSON.

    Raises MemoryPlanError with the plan's message if the model does not fit, Unavailable if the
    text is not a plan.
    """
    try:
        made = json.loads(text)
        fits, where, memory = made["fits"], made["slice"], made["memory"]
        if not fits:
            raise MemoryPlanError(_refusal(made))
        return Planned(
            topology=where["topology"],
            path=made["path"],
            hosts=where["hosts"],
            devices=where["devices"],
            weights=memory["weights"],
            used=memory["used"],
            limit=memory["limit"],
            kv_tokens=memory["kv_tokens"],
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise Unavailable(
            "planning the model failed: see the output above; --no-plan renders without a plan"
        ) from exc


def _refusal(made: dict[str, Any]) -> str:
    advice: list[str] = made.get("advice") or []
    hints = "".join(f"\n  {line}" for line in advice)
    problem = made.get("problem") or f"{made['model']} does not fit {made['slice']['topology']}"
    return f"{problem}\nit would fit with any of these:{hints}" if hints else str(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Options for the manifests of one model. Raises InvalidRequest if they cannot work."""

    model: str  # as given
    bucket: StorageBucket
    replicas: int = 1
    kind: str = "jobset"
    part: str = "all"
    name: str = SET_NAME
    cell: CellId = field(default_factory=lambda: CellId("test"))
    model_id: ModelId | None = None  # None: derived from the model's name
    model_path: str | None = None  # registered path; None: as the checkpoint says
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    namespace: str | None = None  # None: kubectl's
    images: ImageSource = ImageSource()
    service_account_email: str | None = None
    slots: int | None = None
    max_context: int | Literal["auto"] | None = None
    flex_start: bool = False
    spot: bool = False
    is_reserved: bool = False  # servers take this model only
    pathways: PathwaysOptions = PathwaysOptions()

    def __post_init__(self) -> None:
        _check_text(self.model, "MODEL")
        _check_choice(self.kind, KINDS + PATHWAYS_KINDS, "kind")
        _check_choice(self.part, PARTS, "only")
        _check_replicas(self.replicas)
        if self.namespace is not None:
            check_label(self.namespace, "--namespace", "namespace")
        if self.model_path is not None:
            check_model_path(self.model_path)
        for key, value in self.overrides.items():
            _check_text(key, "--set")
            _check_text(value, f"--set {key}")
        _check_counts({"slots": self.slots})
        if self.max_context != "auto":
            _check_counts({"max-context": self.max_context})
        _check_email(self.service_account_email)
        self._check_capacity()
        self._check_model_id()
        self._check_pathways()

    def _check_capacity(self) -> None:
        if self.flex_start and self.spot:
            raise InvalidRequest(
                "--flex-start and --spot are two ways to pay for nodes: give only one",
                param="spot",
            )

    def _check_model_id(self) -> None:
        if self.model_id is not None and self.model_id.cell_id != self.cell:
            raise InvalidRequest(
                f"--publish-as {self.model_id} is in another cell than {self.cell}: give --cell "
                f"{self.model_id.cell_id}, or publish it as {self.cell}/{self.model_id.model}",
                param="publish_as",
            )

    def _check_pathways(self) -> None:
        given = self.pathways.given()
        if not self.is_pathways and given:
            raise InvalidRequest(
                f"{given[0]} goes with --kind {PATHWAYS}, not with --kind {self.kind}",
                param=given[0].removeprefix("--").replace("-", "_"),
            )
        if self.is_pathways and self.bucket.scheme != "gs" and self.pathways.directory is None:
            raise InvalidRequest(
                f"Pathways keeps its artifacts in a Google bucket, and --bucket {self.bucket.url} "
                "is none: give --pathways-dir gs://BUCKET/FOLDER too",
                param="pathways_dir",
            )

    @property
    def is_pathways(self) -> bool:
        return self.kind in PATHWAYS_KINDS

    @property
    def capacity_labels(self) -> dict[str, str]:
        """Labels of the nodes that the order is to pay for."""
        return dict.fromkeys([FLEX_START] * self.flex_start + [SPOT] * self.spot, "true")

    @property
    def set_names(self) -> list[str]:
        if self.kind != "jobset" and not self.is_pathways:
            return [self.name]
        return [f"{self.name}-{index}" for index in range(self.replicas)]

    @property
    def jobs(self) -> int:
        return self.replicas if self.kind == "one-jobset" else 1

    def check_slice(self, there: TpuSlice) -> None:
        """Check what depends on the slice of each replica. Raises InvalidRequest."""
        self.check_names(there.hosts)
        if self.is_pathways:
            check_machine(there)

    def check_names(self, hosts: int) -> None:
        """Check all derived names for replicas of `hosts` hosts. Raises InvalidName."""
        if self.kind == "leaderworkerset":
            return check_leader_worker_set(self.name, replicas=self.replicas, param="name")
        longest = max(self.set_names, key=len)
        if self.is_pathways:
            return self._check_pathways_names(longest, hosts)
        check_jobset(longest, JOB_NAME, replicas=self.jobs, pods=hosts, param="name")
        return None

    def _check_pathways_names(self, name: str, hosts: int) -> None:
        check_jobset(name, HEAD_JOB, replicas=1, pods=1, has_coordinator=True, param="name")
        check_jobset(name, WORKER_JOB, replicas=self.pathways.slices, pods=hosts, param="name")


@dataclass(frozen=True, slots=True)
class SlicePlacement:
    """The slice of each replica."""

    there: TpuSlice
    planned: Planned | None = None  # None: not planned


def _check_choice(value: str, choices: tuple[str, ...], option: str) -> None:
    if value not in choices:
        raise InvalidRequest(
            f"--{option} {value!r}: choose one of {', '.join(choices)}", param=option
        )


def _check_replicas(count: int) -> None:
    if not 1 <= count <= _MOST_REPLICAS:
        raise InvalidRequest(
            f"--replicas {count}: write 1 to {_MOST_REPLICAS}; each is a slice of its own "
            "(--only control renders a cell without model servers)",
            param="replicas",
        )


def _check_counts(counts: Mapping[str, int | None]) -> None:
    for option, count in counts.items():
        if count is not None and not 1 <= count <= 2**31 - 1:
            raise InvalidRequest(f"--{option} {count}: it must be above 0", param=option)


def _check_email(email: str | None) -> None:
    if email is not None and not _EMAIL.fullmatch(email):
        raise InvalidRequest(
            f"--service-account-email {email!r}: give the e-mail of a Google service account, e.g. "
            "sax@my-project.iam.gserviceaccount.com",
            param="service_account_email",
        )


def _check_text(text: str, what: str) -> None:
    """Require one printable line: the text ends up in comments and shell commands."""
    if not text or not text.isprintable():
        raise InvalidRequest(
            f"{what} {json.dumps(text)}: write one line without control characters",
            param=what.strip("-").lower(),
        )
