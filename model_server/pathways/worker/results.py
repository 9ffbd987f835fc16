"""Results of calls as their clients declare them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from model_server.pathways.protocol.messages import DTypeProto
from model_server.pathways.worker.arrays import Arrays

STRING = DTypeProto.Kind.Value("KIND_STRING")


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a call makes."""

    shape: tuple[int, ...]  # of the whole array
    dtype: np.dtype
    sharding: jax.sharding.Sharding
    spec: Any  # ArraySpecProto

    @property
    def is_text(self) -> bool:
        """True for strings, in which clients are told what a function returned."""
        return self.spec.dtype.kind == STRING


def results_of(specs: Iterable[Any], arrays: Arrays) -> list[Result]:
    """Return the results of ArraySpecProtos. Raises Refused."""
    return [_result(each, arrays) for each in specs]


def _result(spec: Any, arrays: Arrays) -> Result:
    if spec.dtype.kind == STRING:
        return Result((), np.dtype(np.dtypes.StringDType()), arrays.sharding(spec), spec)
    return Result(*arrays.spec(spec), spec)
