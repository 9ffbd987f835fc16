"""Components of a PathwaysJob that are not Google's, or not as its controller starts them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k8s.render.image import is_image
from sax.errors import InvalidRequest

RESOURCE_MANAGER, WORKER, PROXY = PROGRAMS = ("pathways_server", "worker", "proxy_server")
SIDECAR = "colocated_python_sidecar"
COMPONENTS = (*PROGRAMS, SIDECAR)
OURS = "sax"  # in place of an image: the one with the model server

# A PathwaysJob gives a component flags but no command, and tells only the resource manager what it
# is, so the entry point of our image is told by these.
_OUR_FLAGS: dict[str, tuple[str, ...]] = {
    RESOURCE_MANAGER: (),
    WORKER: ("--node_type=worker",),
    PROXY: ("--node_type=proxy_server",),
}
_TRUST = "SAX_PATHWAYS_TRUST_NETWORK"
# Flags that the controller makes of other fields, and the option that sets those.
_CONTROLLERS: dict[str, str] = {
    "--gcs_scratch_location": "--pathways-dir",
    "--instance_count": "--slices",
    "--instance_type": "--topology",
    "--num_elastic_slices": "--elastic-slices",
    "--enable_metrics_collection": "--enable-metrics-collection",
    "--server_port": "",
    "--resource_manager_address": "",
}
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PathwaysComponent:
    """One of `customComponents`. Raises InvalidRequest if the controller would ignore a part."""

    kind: str  # one of COMPONENTS
    image: str | None = None  # None: Google's; OURS: ours
    flags: tuple[str, ...] = ()  # --name=value, after those of the controller
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.image not in (None, OURS) and not is_image(self.image or ""):
            raise InvalidRequest(
                f"--component {self.kind}={self.image!r}: write an image as HOST/PATH:TAG, or "
                f"{OURS} for the image of the model server",
                param="component",
            )
        if self.kind == SIDECAR:
            self._check_sidecar()
        for flag in self.flags:
            _check_flag(self.kind, flag)
        for name, value in self.env.items():
            _check_variable(self.kind, name, value)

    def _check_sidecar(self) -> None:
        if self.image in (None, OURS):
            raise InvalidRequest(
                f"--component {SIDECAR} needs the image of a colocated Python sidecar, which sax "
                f"has none of: give {SIDECAR}=HOST/PATH:TAG",
                param="component",
            )
        if self.flags or self.env:
            raise InvalidRequest(
                f"the controller gives the {SIDECAR} neither flags nor variables: put them into "
                "its image",
                param="component",
            )

    @property
    def is_ours(self) -> bool:
        return self.image == OURS

    def manifest(self, our_image: str, *, trusts_network: bool = False) -> dict[str, Any]:
        """Return the item of `customComponents`; `our_image` stands where `image` is OURS.

        trusts_network: whether ours serve all who reach their ports, without certificates.
        """
        flags = [*(_OUR_FLAGS[self.kind] if self.is_ours else ()), *self.flags]
        ours = {_TRUST: "1"} if trusts_network and self.is_ours else {}
        env = [{"name": name, "value": value} for name, value in {**ours, **self.env}.items()]
        found = {
            "image": our_image if self.is_ours else self.image,
            "customFlags": flags,
            "customEnv": env,
        }
        return {"componentType": self.kind} | {key: each for key, each in found.items() if each}


def parse_components(
    images: Iterable[str], flags: Iterable[str], variables: Iterable[str], *, are_ours: bool
) -> tuple[PathwaysComponent, ...]:
    """Parse KIND=IMAGE, KIND=--FLAG=VALUE and KIND=NAME=VALUE words, in the order of COMPONENTS.

    are_ours: our image for every program that `images` does not name. Raises InvalidRequest.
    """
    found = dict.fromkeys(PROGRAMS, OURS) if are_ours else {}
    given: dict[str, str] = {}
    for kind, image in _pairs(images, "component"):
        if kind in given:
            raise InvalidRequest(f"--component {kind} is given twice", param="component")
        given[kind] = image
    found |= given
    words = list(_pairs(flags, "component-flag"))
    pairs = list(_pairs(variables, "component-env"))
    named = {*found, *(kind for kind, _ in (*words, *pairs))}
    return tuple(
        PathwaysComponent(kind, found.get(kind), _of(kind, words), _variables(_of(kind, pairs)))
        for kind in COMPONENTS
        if kind in named
    )


def _pairs(words: Iterable[str], option: str) -> Iterable[tuple[str, str]]:
    for word in words:
        kind, equals, value = word.partition("=")
        if not (equals and value) or kind not in COMPONENTS:
            raise InvalidRequest(
                f"--{option} {word!r}: write KIND=... with a KIND of {', '.join(COMPONENTS)}",
                param=option.replace("-", "_"),
            )
        yield kind, value


def _of(kind: str, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(value for each, value in pairs if each == kind)


def _variables(words: Iterable[str]) -> dict[str, str]:
    made: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in made:
            raise InvalidRequest(
                f"--component-env {word!r}: write KIND=NAME=VALUE, each NAME once",
                param="component_env",
            )
        made[name] = value
    return made


def _check_flag(kind: str, flag: str) -> None:
    name, _, _ = flag.partition("=")
    if not (_FLAG.fullmatch(name) and flag.isprintable()):
        raise InvalidRequest(
            f"--component-flag {kind}={flag!r}: write KIND=--NAME=VALUE, on one line",
            param="component_flag",
        )
    if name in _CONTROLLERS:
        option = _CONTROLLERS[name]
        remedy = f"use {option}" if option else "it cannot be changed"
        raise InvalidRequest(
            f"--component-flag {kind}={flag}: the controller sets {name} itself: {remedy}",
            param="component_flag",
        )


def _check_variable(kind: str, name: str, value: str) -> None:
    if not (_VARIABLE.fullmatch(name) and value.isprintable()):
        raise InvalidRequest(
            f"--component-env {kind}={name}={value!r}: write KIND=NAME=VALUE with a NAME of "
            "letters, digits and '_' and a VALUE on one line",
            param="component_env",
        )
