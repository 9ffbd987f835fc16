"""Names of container images: ours, and those in a user's registry. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest

IMAGES = ("sax-control", "sax-model-cpu", "sax-model-tpu", "sax-model-cuda")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?"
_REGISTRY = re.compile(rf"{_HOST}(?:/{_PART})*")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where the images of a cell come from."""

    registry: str | None = None  # REGION-docker.pkg.dev/PROJECT/REPO; None: as the nodes have them
    tag: str | None = None  # None: that of this version

    def __post_init__(self) -> None:
        if self.tag is not None and not _TAG.fullmatch(self.tag):
            raise InvalidRequest(
                f"--tag {self.tag!r} is no tag of an image: up to 128 letters, digits, '_', '.' "
                "and '-', as in 0.1.0",
                param="tag",
            )
        if self.registry is not None and not _is_registry(self.registry):
            raise InvalidRequest(
                f"--image-registry {self.registry!r}: write HOST/PATH without scheme or tag, as in "
                "europe-west4-docker.pkg.dev/my-project/sax",
                param="image_registry",
            )

    def image(self, ours: str) -> str:
        """sax-control:0.1.0 as it is called there; an image that is not ours stays as it is."""
        name, _, tag = ours.partition(":")
        if name not in IMAGES:
            return ours
        where = f"{self.registry}/" if self.registry else ""
        return f"{where}{name}:{self.tag or tag}"

    def apply(self, pod: dict[str, Any]) -> None:
        """Name the images of a pod's spec so."""
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            container["image"] = self.image(container["image"])


def _is_registry(text: str) -> bool:
    """A first part that is a host: docker.io/me, localhost:5000; not me/sax, which is no registry.

    Without a dot or a port a container runtime would look for it on Docker Hub.
    """
    host = text.partition("/")[0]
    told = "." in host or ":" in host or host == "localhost"
    return told and len(text) <= 200 and bool(_REGISTRY.fullmatch(text))
