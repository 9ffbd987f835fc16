"""Custom models: any jax function that maps bytes to bytes.

def load(checkpoint, values):
    return CustomProgram(
        weights={"scale": np.float32(values["SCALE"])},
        methods={"custom": CustomMethod(
            pre_process=lambda requests: np.array([json.loads(r) for r in requests]),
            call=lambda weights, x: x * weights["scale"],
            post_process=lambda y: [json.dumps(row.tolist()).encode() for row in y],
            examples=(b"[0, 0, 0]",),
        )},
    )

register(CustomModel(path="scaler", load=load, overridable={"SCALE": 2.0}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Arrays = Any  # a pytree of arrays; the first dimension of each indexes requests


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMethod:
    """One method: decode requests to arrays, compute on the device, encode the answers.

    To reject a request, `pre_process` raises ValueError or a sax error: that request fails with its
    text, and the others in the batch are answered.
    """

    pre_process: Callable[[Sequence[bytes]], Arrays]
    # (weights, arrays) -> arrays. With a state: (weights, state, arrays, rows) -> (arrays, state),
    # where i32[] rows is the number of requests; rows beyond it repeat the first.
    call: Callable[..., Any]
    post_process: Callable[[Arrays], Sequence[bytes]]
    examples: tuple[bytes, ...]  # valid requests, one per shape that pre_process may return
    batch_sizes: tuple[int, ...] = (1, 4, 16)  # compiled at load; a batch is padded to the next
    wait_s: float = 0.002  # longest wait of a request for others to fill its batch
    queue: int | None = None  # requests that may wait; None: the server's --queue
    state: Any = None  # a pytree of arrays carried from batch to batch; None: no state

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError("a CustomMethod needs an example request: its shapes are compiled")
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes is {self.batch_sizes}: give one size of 1 or more")
        if self.wait_s < 0:
            raise ValueError(f"wait_s is {self.wait_s}: give 0 or more seconds")
        if self.queue is not None and self.queue < 1:
            raise ValueError(f"queue is {self.queue}: give 1 or more, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomProgram:
    """Result of loading a custom model: its weights, and its methods by name."""

    methods: Mapping[str, CustomMethod]
    weights: Any = None  # a pytree of arrays, put on the device once

    def __post_init__(self) -> None:
        if not self.methods or not all(self.methods):
            raise ValueError("a CustomProgram needs at least one method, each with a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomModel:
    """A registry entry: a model path and the function that loads it."""

    path: str
    # (checkpoint path or None, override values) -> program. Blocking; an exception becomes the
    # reason that the load failed.
    load: Callable[[str | None, Mapping[str, Any]], CustomProgram]
    overridable: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_checkpoint: bool = False
