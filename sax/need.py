"""Resources that a server must have to load a model that another server refused.

A server reports them in its error and status, so that no client has to parse the message.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Minimum requirements. Bytes are totals over all the model's devices."""

    devices: int = 0  # size of the mesh; 0: any number
    memory: int = 0  # bytes, with the flags of the server that refused
    weights: int = 0  # bytes of the weights alone, which no flag reduces

    @property
    def memory_each(self) -> int:
        """Bytes per device; 0 if any number of devices will do."""
        return -(-self.memory // self.devices) if self.devices else 0

    def joined(self, other: Need | None) -> Need:
        if other is None:
            return self
        return Need(
            devices=max(self.devices, other.devices),
            memory=max(self.memory, other.memory),
            weights=max(self.weights, other.weights),
        )


def to_text(need: Need) -> str:
    return f"{need.devices} {need.memory} {need.weights}"


def from_text(text: str) -> Need | None:
    """Parse `to_text`; None for the format of another version."""
    parts = text.split()
    if len(parts) != 3 or not all(word.isascii() and word.isdigit() for word in parts):
        return None
    devices, memory, weights = map(int, parts)
    return Need(devices=devices, memory=memory, weights=weights)
