"""Names of the sax container images, packaged and in a user's registry. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest

IMAGES = ("sax-control", "sax-model-cpu", "sax-model-tpu", "sax-model-cuda")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REGISTRY = re.compile(rf"{_HOST}(?:/{_PART})*")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Registry and tag of a cell's images."""

    registry: str | None = None  # REGION-docker.pkg.dev/PROJECT/REPO; None: already on the nodes
    tag: str | None = None  # None: this version's

    def __post_init__(self) -> None:
        if self.tag is not None and not is_tag(self.tag):
            raise InvalidRequest(
                f"--tag {self.tag!r} is not an image tag: use up to 128 letters, digits, '_', '.' "
                "and '-', e.g. 0.1.0",
                param="tag",
            )
        if self.registry is not None and not _is_registry(self.registry):
            raise InvalidRequest(
                f"--image-registry {self.registry!r}: write HOST/PATH without scheme or tag, e.g. "
                "europe-west4-docker.pkg.dev/my-project/sax",
                param="image_registry",
            )

    def image(self, ours: str) -> str:
        """Map sax-control:0.1.0 to its name in the registry; leave foreign images unchanged."""
        name, _, tag = ours.partition(":")
        if name not in IMAGES:
            return ours
        where = f"{self.registry}/" if self.registry else ""
        return f"{where}{name}:{self.tag or tag}"

    def apply(self, pod: dict[str, Any]) -> None:
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            container["image"] = self.image(container["image"])


def is_tag(text: str) -> bool:
    return bool(_TAG.fullmatch(text))


def is_image(text: str) -> bool:
    """Accept HOST/PATH:TAG, HOST/PATH@sha256:DIGEST, and our own names without a registry."""
    place, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return False
    registry, slash, last = place.rpartition("/")
    name, colon, tag = last.partition(":")
    if not re.fullmatch(_PART, name) or (colon and not is_tag(tag)):
        return False
    return _is_registry(registry) if slash else name in IMAGES


def _is_registry(text: str) -> bool:
    """Accept docker.io/me and localhost:5000; reject me/sax, whose first part is not a host.

    Without a dot or a port, a container runtime would look on Docker Hub.
    """
    host = text.partition("/")[0]
    told = "." in host or ":" in host or host == "localhost"
    return told and len(text) <= 200 and bool(_REGISTRY.fullmatch(text))
