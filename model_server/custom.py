"""A model of your own: any jax function that maps bytes to bytes.

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

Says what a custom model is; knows nothing of how it is compiled, batched or called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Arrays = Any  # a pytree of arrays; the first dimension of each is the request


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMethod:
    """One method: requests to arrays, arrays to arrays on the device, arrays to answers.

    `pre_process` says what is wrong with a request by raising ValueError (or a sax error); then
    that request is refused with its text, and those beside it are answered.
    """

    pre_process: Callable[[Sequence[bytes]], Arrays]
    # (weights, arrays) -> arrays. With a state: (weights, state, arrays, rows) -> (arrays, state),
    # where i32[] rows says how many rows are requests; those after them repeat the first.
    call: Callable[..., Any]
    post_process: Callable[[Arrays], Sequence[bytes]]
    examples: tuple[bytes, ...]  # good requests, one for each shape that pre_process may make
    batch_sizes: tuple[int, ...] = (1, 4, 16)  # compiled ahead; a batch is padded to the next
    wait_s: float = 0.002  # how long a request waits for others to share a batch with
    queue: int | None = None  # requests that may wait; None: the server's --queue
    state: Any = None  # a pytree of arrays that one batch hands to the next; None: no state

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
    """What loading a custom model gives: its weights, and its methods by name."""

    methods: Mapping[str, CustomMethod]
    weights: Any = None  # a pytree of arrays, put on the device once

    def __post_init__(self) -> None:
        if not self.methods or not all(self.methods):
            raise ValueError("a CustomProgram needs at least one method, each with a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomModel:
    """One entry of the registry: a model path and the function that loads it."""

    path: str
    # (checkpoint path or None, override values) -> program. Blocking; what it raises is the
    # reason why the model did not load.
    load: Callable[[str | None, Mapping[str, Any]], CustomProgram]
    overridable: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_checkpoint: bool = False
