"""Loads a custom model: runs the user's load function, then compiles every bucket.

Memory is counted after the function has run, because only it knows what it loads.

A request that fails gets its own error: a failed batch is halved until the bad request is alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from model_server.config import ModelServerConfig
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import Batching, BatchRunner, LoadedBatches
from model_server.loading.loaded_model import Report
from model_server.models.custom import Arrays, CustomMethod, CustomModel, CustomProgram
from model_server.models.overrides import apply_overrides
from model_server.models.weights.sharding import own_device
from sax.errors import Internal, InvalidRequest, LoadFailed, SaxError
from sax.memory_parts import MemoryParts
from sax.names import NO_CHECKPOINT
from sax.types import Progress

logger = logging.getLogger(__name__)

# Signature of a request: the pytree structure, and shape and dtype of each array's row.
Form = tuple[Any, tuple[tuple[tuple[int, ...], str], ...]]


class CustomRequest(NamedTuple):
    method: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCustom(LoadedBatches):
    """Every method has a queue of its name."""

    runner: BatchRunner[CustomRequest, bytes]

    @property
    def kind(self) -> str:
        return "a custom model"


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedCustom]:
    """Load a model and compile every bucket.

    Raises InvalidRequest, LoadFailed, and what the user's function raises.
    """
    model, config = asked.entry, context.config
    assert isinstance(model, CustomModel), "the kind was chosen by it"
    spec = context.opener.local(asked.spec, report)
    checkpoint = None if spec.checkpoint == NO_CHECKPOINT else spec.checkpoint
    if checkpoint is None and model.needs_checkpoint:
        raise InvalidRequest(f"{model.path} needs a checkpoint, not None", param="checkpoint")
    values = apply_overrides(model.overridable, spec.overrides)
    report(Progress("loading"))
    program = model.load(checkpoint, values)
    if not isinstance(program, CustomProgram):
        raise LoadFailed(
            f"load of {model.path} must return a CustomProgram, not a {type(program).__name__}"
        )
    compiled = CompiledProgram(program, report)
    batching = {name: _batching(method, config) for name, method in program.methods.items()}
    return BatchPlan(
        context=context,
        spec=spec,
        layout=own_device(),
        parts=MemoryParts(weights=compiled.bytes, workspace=compiled.workspace),
        runner=lambda report: compiled,
        loaded=partial(LoadedCustom, batching=batching, methods=tuple(batching)),
        discard=compiled.close,
    )


def _batching(method: CustomMethod, config: ModelServerConfig) -> Batching:
    return Batching(max(method.batch_sizes), method.wait_s, method.queue or config.queue)


class CompiledProgram:
    """All methods of a custom model. Not thread-safe: one thread calls it."""

    def __init__(self, program: CustomProgram, report: Callable[[Progress], None]) -> None:
        """Compile every method. Raises LoadFailed if the user's functions do not fit together."""
        weights = jax.device_put(program.weights)
        total = sum(
            len(method.examples) * len(set(method.batch_sizes))
            for method in program.methods.values()
        )
        done = 0

        def compiled() -> None:
            nonlocal done
            report(Progress("compiling bucket", done, total))
            done += 1

        self.closed = False
        self.methods: Mapping[str, CompiledMethod] = {
            name: CompiledMethod(name, method, weights, compiled)
            for name, method in program.methods.items()
        }
        self.bytes = _bytes(weights) + sum(each.state_bytes for each in self.methods.values())
        self.workspace = max(each.workspace for each in self.methods.values())

    def group(self, item: CustomRequest) -> Hashable:
        return item.method

    def run(self, items: Sequence[CustomRequest]) -> Sequence[bytes | SaxError]:
        return self.methods[items[0].method].answer([each.body for each in items])

    def warm(self, report: Callable[[Progress], None]) -> None:
        """Do nothing: the examples have run."""

    def close(self) -> None:
        """Release weights, states and programs. Idempotent."""
        self.methods = {}
        self.closed = True


class CompiledMethod:
    def __init__(
        self, name: str, method: CustomMethod, weights: Any, before_compile: Callable[[], None]
    ) -> None:
        self._name = name
        self._method = method
        self._weights = weights
        self._state = jax.device_put(method.state)
        self._sizes = sorted(set(method.batch_sizes))
        self._programs: dict[tuple[int, Form], jax.stages.Compiled] = {}
        for example in method.examples:
            for size in self._sizes:
                before_compile()
                self._compile(example, size)
            self._try(example)
        self.state_bytes = _bytes(self._state)
        self.workspace = max(map(_workspace, self._programs.values()))

    def answer(self, requests: Sequence[bytes]) -> list[bytes | SaxError]:
        try:
            return [*self._answer_all(requests)]
        except BaseException as exc:  # even a SystemExit in user code fails one request only
            if len(requests) == 1:
                return [self._error(exc)]
        half = len(requests) // 2
        return [*self.answer(requests[:half]), *self.answer(requests[half:])]

    def _answer_all(self, requests: Sequence[bytes]) -> Sequence[bytes]:
        arrays = self._pre_process(requests)
        size = next(size for size in self._sizes if size >= len(requests))
        program = self._programs.get((size, _form(arrays)))
        if program is None:
            raise InvalidRequest(self._unknown_form(arrays), param="request")
        outputs, state = self._call(program, _padded(arrays, size), len(requests))
        rows = jax.tree.map(lambda array: np.asarray(array)[: len(requests)], outputs)
        answers = self._method.post_process(rows)
        if len(answers) != len(requests) or not all(isinstance(each, bytes) for each in answers):
            raise TypeError(f"post_process must return {len(requests)} bytes objects")
        self._state = state
        return answers

    def _call(self, program: jax.stages.Compiled, arrays: Arrays, rows: int) -> tuple[Arrays, Any]:
        if self._state is None:
            return program(self._weights, arrays), None
        return program(self._weights, self._state, arrays, np.int32(rows))

    def _pre_process(self, requests: Sequence[bytes]) -> Arrays:
        try:
            arrays = jax.tree.map(np.asarray, self._method.pre_process(requests))
        except ValueError as exc:  # Python's usual error for bad input
            raise InvalidRequest(str(exc) or "the request is malformed", param="request") from exc
        leaves = jax.tree.leaves(arrays)
        if not leaves or any(leaf.shape[:1] != (len(requests),) for leaf in leaves):
            raise TypeError(
                f"pre_process of {len(requests)} requests must return arrays of as many rows; it "
                f"returned {_shapes(leaves) or 'none'}"
            )
        return arrays

    def _compile(self, example: bytes, size: int) -> None:
        try:
            arrays = self._pre_process([example] * size)
            given = (arrays,) if self._state is None else (self._state, arrays, np.int32(size))
            lowered = jax.jit(self._method.call).lower(self._weights, *given)
            self._check_outputs(lowered.out_info, size)
            self._programs[size, _form(arrays)] = lowered.compile()
        except Exception as exc:
            raise self._unloadable(example, exc) from exc

    def _check_outputs(self, outputs: Any, size: int) -> None:
        if self._state is not None:
            if not isinstance(outputs, tuple) or len(outputs) != 2:
                raise TypeError("call has a state, so it must return (arrays, state)")
            outputs, state = outputs
            if _kinds(state) != _kinds(self._state):
                raise TypeError(f"call turns the state {_kinds(self._state)} into {_kinds(state)}")
        wrong = [leaf for leaf in jax.tree.leaves(outputs) if leaf.shape[:1] != (size,)]
        if wrong:
            raise TypeError(
                f"call of {size} rows must return arrays of as many; it returned {wrong}"
            )

    def _try(self, example: bytes) -> None:
        """Run one example end to end, so that what cannot work fails at load time."""
        state = self._state
        try:
            self._answer_all([example])
        except Exception as exc:
            raise self._unloadable(example, exc) from exc
        self._state = state

    def _unloadable(self, example: bytes, exc: Exception) -> LoadFailed:
        text = exc.text if isinstance(exc, SaxError) else f"{type(exc).__name__}: {exc}"
        return LoadFailed(
            f"method {self._name!r} does not work on its example {example[:40]!r}: {text}"
        )

    def _unknown_form(self, arrays: Arrays) -> str:
        known = {shapes for _, (_, shapes) in self._programs}
        return (
            f"the request makes rows of {_form(arrays)[1]}, but method {self._name!r} was compiled "
            f"for {', '.join(map(str, sorted(known)))}"
        )

    def _error(self, exc: BaseException) -> SaxError:
        if isinstance(exc, SaxError):
            return exc
        logger.error("method %s failed on a request", self._name, exc_info=exc)
        return Internal(
            f"method {self._name!r} failed on this request ({type(exc).__name__}); the server's "
            "log has the details"
        )


def _form(arrays: Arrays) -> Form:
    leaves, structure = jax.tree.flatten(arrays)
    return structure, tuple((leaf.shape[1:], str(leaf.dtype)) for leaf in leaves)


def _padded(arrays: Arrays, size: int) -> Arrays:
    """Pad to the compiled size by repeating the first row."""

    def pad(array: np.ndarray) -> np.ndarray:
        missing = size - len(array)
        return np.concatenate([array, np.repeat(array[:1], missing, axis=0)]) if missing else array

    return jax.tree.map(pad, arrays)


def _kinds(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


def _shapes(leaves: Sequence[np.ndarray]) -> str:
    return ", ".join(str(list(leaf.shape)) for leaf in leaves)


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _workspace(program: jax.stages.Compiled) -> int:
    """Bytes of a program's temporaries and results; 0 if the backend does not report them."""
    stats = program.memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes if stats else 0
