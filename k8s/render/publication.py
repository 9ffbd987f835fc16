"""The commands that publish an order's model once its servers run. Pure."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field

from k8s.render.bucket import CHECKPOINTS
from k8s.render.names import slug
from k8s.render.order import Order, Planned
from sax.errors import InvalidRequest
from sax.names import NO_CHECKPOINT, ModelId
from sax.overrides.known_paths import AUTO, full_path

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PublishCommand:
    """The arguments of `sax publish`."""

    model_id: ModelId
    model_path: str
    checkpoint: str
    replicas: int
    overrides: dict[str, str] = field(default_factory=dict[str, str])
    is_upload: bool = False  # the checkpoint must be uploaded first

    @property
    def command(self) -> str:
        pairs = [f"{key}={value}" for key, value in self.overrides.items()]
        words = (str(self.model_id), self.model_path, self.checkpoint, str(self.replicas), *pairs)
        return shlex.join(("sax", "publish", *words))

    @property
    def curl(self) -> str:
        body: dict[str, object] = {
            "model": str(self.model_id),
            "model_path": self.model_path,
            "checkpoint": self.checkpoint,
            "replicas": self.replicas,
        }
        if self.overrides:
            body["overrides"] = self.overrides  # values are JSON text, as in Saxml
        data = shlex.quote(json.dumps(body))
        return (
            'curl --request POST --header "Content-type: application/json" -s '
            f"http://$LB_IP:8888/publish --data {data}"
        )


def publication_of(order: Order, planned: Planned | None) -> PublishCommand:
    is_registered = _is_registered(order, planned)
    model_id = model_id_of(order)
    path = order.model_path or (planned.path if planned else None)
    if path is None:
        path = full_path(order.model) if is_registered else AUTO
    checkpoint, is_upload = NO_CHECKPOINT, False
    if not is_registered:
        is_upload = "://" not in order.model
        there = f"{order.bucket.url}/{CHECKPOINTS}/{model_id.model}"
        checkpoint = there if is_upload else order.model
    return PublishCommand(
        model_id, path, checkpoint, order.replicas, dict(order.overrides), is_upload
    )


def model_id_of(order: Order) -> ModelId:
    """Return the given model id, or derive it from the model's name.

    Raises InvalidRequest if the name has no usable characters.
    """
    if order.model_id is not None:
        return order.model_id
    last = re.split(r"[/\\]", order.model.rstrip("/\\"))[-1]
    if _CLASS.fullmatch(order.model):
        last = last.rpartition(".")[2]
    word = slug(last)
    if not word:
        raise InvalidRequest(
            f"cannot derive a name from {order.model!r}: give --publish-as {order.cell}/NAME",
            param="publish_as",
        )
    return ModelId(order.cell.cell, word if word[0].isalpha() else f"m-{word}")


def _is_registered(order: Order, planned: Planned | None) -> bool:
    """Return True if MODEL is a model path that fixes its sizes and needs no checkpoint."""
    if order.model_path is not None:
        return False
    if planned is not None:
        return planned.path != AUTO
    return bool(_CLASS.fullmatch(order.model))
