"""An island's devices as clients see them: numbered from the island's first, with attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jaxlib._jax import Device

from model_server.kernels.cpu import native
from model_server.pathways.protocol import InitResponse
from model_server.pathways.worker.statuses import WrongRequest
from sax.host import machine_memory

# Attributes of accelerators that programs ask for; jax gives them as attributes of its devices.
_ATTRIBUTES = ("coords", "core_on_chip", "num_cores", "core_count", "compute_capability")
# Attributes of backends that jax asks for: how to write programs that this one's compiler reads.
_OF_BACKENDS = (
    "serialize_with_sdy",
    "stablehlo_current_version",
    "stablehlo_minimum_version",
    "xla_version",
)
_MEMORIES_EACH = 8  # numbers of memories that belong to one device, more than any has


class IslandDevices:
    """The devices of one island, this process's and those of its other hosts."""

    def __init__(
        self,
        devices: Sequence[Device],
        first_id: int = 0,
        island: int = 0,
        memory: int = 0,
        told: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """first_id: the number of the first of them for clients. island: their slice_index.

        memory: bytes that this process may use for CPU devices; 0: the machine's. told: further
        attributes for clients.
        """
        self._devices = tuple(sorted(devices, key=lambda each: each.id))
        self.first_id = first_id
        self.island = island
        self._told = told
        self._memory = memory or machine_memory()
        self._numbers = {device: first_id + place for place, device in enumerate(self._devices)}

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def every(self) -> tuple[Device, ...]:
        return self._devices

    @property
    def client(self) -> Any:
        """The backend."""
        return self._devices[0].client

    @property
    def local(self) -> frozenset[Device]:
        """Those of this process."""
        return frozenset(
            each for each in self._devices if each.process_index == jax.process_index()
        )

    @property
    def _here(self) -> Device:
        """One that answers: those of other processes do not."""
        return min(self.local, key=lambda each: each.id)

    def number(self, device: Device) -> int:
        return self._numbers[device]

    def numbers(self, devices: Iterable[Device]) -> list[int]:
        return [self._numbers[each] for each in devices]

    def device(self, number: int) -> Device:
        """Raises WrongRequest for one of another island."""
        place = number - self.first_id
        if not 0 <= place < len(self._devices):
            last = self.first_id + len(self._devices) - 1
            raise WrongRequest(
                f"device {number} is none of this island, which has {self.first_id} to {last}: "
                "a program runs on one island; run one per island"
            )
        return self._devices[place]

    def devices(self, numbers: Iterable[int]) -> tuple[Device, ...]:
        return tuple(map(self.device, numbers))

    def described(self) -> Any:
        """Return the InitResponse of a client that has these devices only, without a session."""
        first = self._devices[0]
        platform = first.platform
        answer = InitResponse(
            platform_name=platform,
            platform_version=first.client.platform_version,
            platform_id=_platform_id(platform),
            runtime_type="proxy",
            primary_device_ids=self._numbers.values(),
            addressable_device_ids=self._numbers.values(),
        )
        for name, value in _present(first.client, _OF_BACKENDS).items():
            _set(answer.client_attributes.attributes[name], value)
        # The protocol hands no compiled programs over, so jax shall not look for its cache.
        _set(answer.client_attributes.attributes["supports_executable_serialization"], False)
        for device, number in self._numbers.items():
            self._describe(answer, device, number)
        return answer

    def _describe(self, answer: Any, device: Device, number: int) -> None:
        kinds = [memory.kind for memory in self._here.addressable_memories()]
        memories = {kind: number * _MEMORIES_EACH + place for place, kind in enumerate(kinds)}
        platform = device.platform
        told = answer.all_devices.add(
            id=number,
            local_device_id=number,
            local_hardware_id=number,
            platform_name=platform,
            device_kind=device.device_kind,
            default_memory_id=memories[self._here.default_memory().kind],
            memory_ids=memories.values(),
            debug_string=f"{platform}:{number} of island {self.island}",
            to_string=f"{platform.upper()}({number}, island {self.island})",
        )
        for name, value in self._attributes(device).items():
            _set(told.attributes.attributes[name], value)
        for place, (kind, id) in enumerate(memories.items()):
            text = f"{kind} of {platform}:{number}"
            answer.memories.add(
                id=id, memory_space_kind=kind, kind_id=place, device_ids=[number],
                debug_string=text, to_string=text,
            )  # fmt: skip

    def _attributes(self, device: Device) -> Mapping[str, Any]:
        return _present(device, _ATTRIBUTES) | {
            "slice_index": self.island,
            "colocation_id": self._numbers[device],  # a CPU device is its own host device
            "memory_limit_bytes": self._memory_limit(),
            native.ISLANDS: _native(device),
            **self._told,
        }

    def _memory_limit(self) -> int:
        """Return the bytes that one device may hold; of a CPU's devices, each has a share."""
        stats = self._here.memory_stats() or {}
        return int(stats.get("bytes_limit", self._memory // len(self.local)))


def _present(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of these names that there are."""
    own = {name: getattr(owner, name, None) for name in names}
    return {name: value for name, value in own.items() if value is not None}


def _native(device: Device) -> str:
    """Register sax's CPU kernels for the programs of clients, and return their instructions."""
    used = native.in_use() if device.platform == "cpu" else None
    return used.instructions if used else ""


def _platform_id(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def _set(value: Any, to: Any) -> None:
    """Set the Value of an AttributeMapProto."""
    match to:
        case bool():
            value.bool_value = to
        case int():
            value.int64_value = to
        case float():
            value.float_value = to
        case str():
            value.string_value = to.encode()
        case _:
            value.int64_list_value.elements.extend(int(each) for each in to)
