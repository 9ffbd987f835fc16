"""Carries out the requests on arrays. Methods have the names of the kinds of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from model_server.pathways.protocol.messages import StringArrayContents
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.arrays import Arrays, Held, host_bytes
from model_server.pathways.worker.dtypes import numpy_dtype
from model_server.pathways.worker.statuses import Poisoned, UnknownHandle, WrongRequest, fault_of
from model_server.pathways.worker.values import (
    Arriving,
    Buffers,
    ComingValues,
    Elsewhere,
    Later,
    NotHere,
    Session,
    Strings,
    There,
    Value,
    handles_of,
)


class ArrayPieces:
    """Takes apart what an executor holds, without waiting for it."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def replica(self, value: Value) -> Value:
        """Return a single-device array of a replicated one."""
        if isinstance(value, Arriving):
            return _derived(value, self._replica_there)
        return self._replica_there(value)

    def _replica_there(self, value: There) -> There:
        if isinstance(value, Strings):
            return Strings(value.data, 1)
        return self._arrays.replica(value) if isinstance(value, jax.Array) else value

    def parts(self, value: Value, count: int) -> Sequence[Value]:
        """Return the single-device arrays of a value. count: of those that it should have."""
        match value:
            case Strings(data, devices):
                return [Strings(data, 1)] * devices
            case Arriving():
                return self._parts_later(value, count)
            case jax.Array():
                return self._arrays.disassembled(value)
            case _:
                return [value] * count

    def _parts_later(self, coming: Arriving, count: int) -> Sequence[Value]:
        parts = [Arriving() for _ in range(count)]

        def come() -> None:
            try:
                found = self.parts(coming.get(), count)
                if len(found) != count:
                    raise WrongRequest(f"{count} handles for {len(found)} arrays")
            except Exception as exc:
                found = [fault_of(exc)] * count
            for part, value in zip(parts, found, strict=True):
                assert not isinstance(value, Arriving)
                part.set(value)

        coming.then(come)
        return parts


def _derived(coming: Arriving, how: Callable[[There], There]) -> Arriving:
    """Return what will be made of a value that comes."""
    made = Arriving()

    def come() -> None:
        try:
            made.set(how(coming.get()))
        except Exception as exc:
            made.set(fault_of(exc))

    coming.then(come)
    return made


class ArrayRequests:
    """Each method takes the session, the request, the response to fill, the first handle that it
    may give out, and host buffers; what waits is returned, to be called later.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._pieces = ArrayPieces(arrays)

    def make_array_from_host_buffer(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.array_handle if asked.HasField("array_handle") else made
        told.array_handle = handle

        def make() -> list[Held]:
            if (buffer := buffers.get(asked.host_buffer_handle)) is None:
                raise UnknownHandle(f"there is no host buffer {asked.host_buffer_handle:#x}")
            return [self._arrays.from_buffer(asked, buffer)]

        of.store([handle], make)

    def make_arrays_from_host_buffer_shards(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = handles_of(asked.array_handles, len(asked.specs), made)
        told.array_handles.extend(handles)
        of.store(handles, lambda: [self._arrays.from_shards(each, buffers) for each in asked.specs])

    def make_error_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = handles_of(asked.array_handles, len(asked.array_specs), made)
        told.array_handles.extend(handles)
        of.poison(handles, Fault(asked.error.code, asked.error.message))

    def assemble_array_from_single_device_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.result_handle or made
        told.array_handle = handle
        dtype = numpy_dtype(asked.dtype.kind) if asked.HasField("dtype") else None
        shape = tuple(asked.shape.dims)

        def make() -> list[Held]:
            parts = of.parts(asked.single_device_array_handles)
            return [self._arrays.assembled(shape, dtype, asked.sharding, parts)]

        of.store([handle], make)

    def disassemble_into_single_device_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        (value,) = of.known([asked.array_handle])
        if isinstance(value, Arriving):
            value = value.get() if value.come or not asked.result_handles else value
        if isinstance(value, Elsewhere):
            of.arrays.update(dict.fromkeys(asked.result_handles, value))
            raise NotHere
        if isinstance(value, Fault) and not asked.result_handles:
            raise Poisoned(value)
        parts = self._pieces.parts(value, len(asked.result_handles))
        handles = handles_of(asked.result_handles, len(parts), made)
        of.arrays.update(zip(handles, parts, strict=True))
        told.array_handles.extend(handles)

    def fully_replicated_shard(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.result_handle or made
        told.array_handle = handle
        (value,) = of.known([asked.array_handle])
        of.store([handle], lambda: [self._pieces.replica(value)])

    def copy_arrays(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> None:
        handles = handles_of(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        of.store(handles, lambda: self._arrays.copied(of.held(asked.array_handles), asked))

    def reshard_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = handles_of(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        each = zip(asked.array_handles, asked.array_specs, strict=True)
        how = asked.copy_semantics
        of.store(
            handles,
            lambda: [self._arrays.resharded(of.array(one), spec, how) for one, spec in each],
        )

    def bitcast_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = handles_of(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        each = zip(asked.array_handles, asked.array_specs, strict=True)
        of.store(handles, lambda: [self._arrays.bitcast(of.array(one), spec) for one, spec in each])

    def remap_arrays(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> None:
        handles = handles_of(asked.result_handles, len(asked.plan.output_specs), made)
        told.array_handles.extend(handles)
        of.store(handles, lambda: self._arrays.remapped(of.held(asked.array_handles), asked.plan))

    def copy_to_host_buffer(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later:
        (value,) = of.known([asked.array_handle])
        if isinstance(value, Elsewhere):
            raise NotHere
        if isinstance(value, Fault):
            raise Poisoned(value)
        if isinstance(value, jax.Array):
            value.copy_to_host_async()
        fetch = of.fetching(asked.array_handle)

        def later() -> Buffers:
            with fetch:
                there = value.get() if isinstance(value, Arriving) else value
                return {asked.host_buffer_handle: _fetched(there, asked)}

        return ComingValues([value], later)

    def check_value_ready(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        return ComingValues(of.known(asked.value_handles))

    def check_future(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        return of.waited(asked.future_handle)

    def delete_array(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> None:
        """Handle 0 is a future that is ready."""
        for handle in asked.array_handle:
            value = of.value(handle)
            if isinstance(value, jax.Array):
                of.fetched(handle)
                value.delete()

    def is_array_deleted(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        value = of.value(asked.array_handle)
        if isinstance(value, Elsewhere):
            raise NotHere
        told.deleted = isinstance(value, jax.Array) and value.is_deleted()

    def destruct_array(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        for handle in asked.array_handle:
            of.arrays.pop(handle, None)


def _fetched(value: There, asked: Any) -> bytes | memoryview:
    """Return what a CopyToHostBufferRequest asks for."""
    if isinstance(value, Elsewhere):
        raise NotHere
    if isinstance(value, Fault):
        raise Poisoned(value)
    if isinstance(value, Strings):
        return StringArrayContents(strings=[value.data]).SerializeToString()
    strides = tuple(asked.byte_strides.strides) if asked.HasField("byte_strides") else None
    return host_bytes(np.asarray(value), strides)
