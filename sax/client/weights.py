"""Client calls that change a loaded model's weights in place, and that pause its engine."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sax.client.admin import Admin
from sax.errors import InvalidRequest
from sax.proto import cell_pb2
from sax.weights import CHANGE_S, Pausing, ReplicaWeights, WeightAction, WeightChange, check_alike
from sax.wire.weights import choice_of, decode_replica, encode_weights

_SHARED = Path("/dev/shm")
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class WeightCalls:
    """Mixin: changes of weights, all on the admin, which asks every ready replica."""

    _admin: Admin

    async def update_weights(
        self,
        model_id: str,
        source: str | Mapping[str, Any],
        *,
        version: str = "",
        expected: str = "",
        partial: bool = False,
        mode: str = Pausing.WAIT,
        timeout_s: float = CHANGE_S,
    ) -> str:
        """Replace the weights of every ready replica between two steps; return their version.

        source: a checkpoint's path on the model servers, one safetensors file, or arrays of numpy
        or jax by their Hugging Face names, which go through shared memory to model servers of this
        machine. version: to name the new weights; "": the next number. expected: the version that
        they replace. partial: the source has some of the tensors. mode: "wait" lets answers that
        have begun end first, "keep" goes on with their keys and values, "recompute" computes these
        again.

        Raises InvalidRequest, CheckpointError, MemoryPlanError, StaleRevision, PermissionDenied,
        and Unavailable naming the replicas that did not follow the others.
        """

        async def change(where: str) -> str:
            replicas = await self._weights(
                WeightAction.UPDATE,
                model_id,
                timeout_s,
                source=where,
                version=version,
                expected=expected,
                partial=partial,
                pausing=choice_of(Pausing, mode, "mode"),
            )
            return replicas[0].version

        if isinstance(source, str):
            return await change(source)
        with _shared(source) as name:
            return await change(f"shm:{name}")

    async def pause(
        self, model_id: str, mode: str = Pausing.WAIT, *, timeout_s: float = CHANGE_S
    ) -> None:
        """Have a model compute nothing until `resume`; requests wait. mode: as of `update_weights`.

        Raises InvalidRequest, Unavailable, PermissionDenied.
        """
        pausing = choice_of(Pausing, mode, "mode")
        await self._weights(WeightAction.PAUSE, model_id, timeout_s, pausing=pausing)

    async def resume(self, model_id: str, *, timeout_s: float = CHANGE_S) -> None:
        """End a pause. Raises Unavailable, PermissionDenied."""
        await self._weights(WeightAction.RESUME, model_id, timeout_s)

    async def sleep(
        self, model_id: str, mode: str = Pausing.WAIT, *, timeout_s: float = CHANGE_S
    ) -> None:
        """Free a model's weights and pages; its programs stay, for `wake`. mode: not "keep".

        Raises InvalidRequest, Unavailable, PermissionDenied.
        """
        pausing = choice_of(Pausing, mode, "mode")
        await self._weights(WeightAction.SLEEP, model_id, timeout_s, pausing=pausing)

    async def wake(
        self, model_id: str, checkpoint: str = "", *, timeout_s: float = CHANGE_S
    ) -> None:
        """Read a sleeping model's weights again, those of before without a checkpoint.

        Raises InvalidRequest, CheckpointError, Unavailable, PermissionDenied.
        """
        await self._weights(WeightAction.WAKE, model_id, timeout_s, source=checkpoint)

    async def weights(
        self, model_id: str, *, timeout_s: float | None = None
    ) -> list[ReplicaWeights]:
        """Return the version of the weights of each ready replica, and whether it serves."""
        change = WeightChange(model_id=model_id, action=WeightAction.STATUS)
        return await self.change_weights(change, timeout_s)

    async def change_weights(
        self, change: WeightChange, timeout_s: float | None = CHANGE_S
    ) -> list[ReplicaWeights]:
        """Ask every ready replica for a change; one that did not follow has an error in words.

        Raises as the calls above, the replicas' error if none of them followed.
        """
        answer = cell_pb2.WeightsResponse
        request = encode_weights(change)
        reply = await self._admin.change("Cell/Weights", request, answer, timeout_s)
        return [decode_replica(each) for each in reply.replicas]

    async def _weights(
        self, action: WeightAction, model_id: str, timeout_s: float | None, **more: Any
    ) -> list[ReplicaWeights]:
        change = WeightChange(model_id=model_id, action=action, **more)
        replicas = await self.change_weights(change, timeout_s)
        check_alike(model_id, replicas)
        return replicas


@contextmanager
def _shared(arrays: Mapping[str, Any]) -> Generator[str]:
    """Lay arrays into shared memory as a safetensors file, until they were read; yield its name."""
    name = f"sax-weights-{secrets.token_hex(12)}"
    path = _SHARED / name
    try:
        write_safetensors(path, arrays)
        yield name
    finally:
        path.unlink(missing_ok=True)


def write_safetensors(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays of numpy or jax. Raises InvalidRequest for other dtypes than floats."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        dtype = str(array.dtype)
        if dtype not in _DTYPES:
            raise InvalidRequest(
                f"tensor {name} is {dtype}: weights are {', '.join(_DTYPES)}, and are quantised by "
                "the server as the model was published",
                param="source",
            )
        size = math.prod(array.shape) * (4 if dtype == "float32" else 2)
        offsets = [end, end + size]
        header[name] = {
            "dtype": _DTYPES[dtype],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            file.write(_bytes_of(array))


def _bytes_of(array: Any) -> Any:
    """The numbers of an array in order; a view of them where it lies in this process's memory."""
    import numpy as np  # only a trainer, which has it, gives arrays

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
