"""What a server must have for a model that found no room on another.

A server that refuses a load says it this way, in its error and in its status, so that nobody has to
read it out of a sentence. Knows nothing of models, devices or the wire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The least that would do. Bytes are of all the model's devices together."""

    devices: int = 0  # that its mesh takes; 0: any number
    memory: int = 0  # bytes, with the flags of the server that said so
    weights: int = 0  # bytes of its weights alone, which no flag makes less

    @property
    def memory_each(self) -> int:
        """Bytes on each device; 0 where any number of devices will do."""
        return -(-self.memory // self.devices) if self.devices else 0

    def joined(self, other: Need | None) -> Need:
        """What meets both."""
        if other is None:
            return self
        return Need(
            devices=max(self.devices, other.devices),
            memory=max(self.memory, other.memory),
            weights=max(self.weights, other.weights),
        )


def to_text(need: Need) -> str:
    """As it stands in the metadata of an error."""
    return f"{need.devices} {need.memory} {need.weights}"


def from_text(text: str) -> Need | None:
    """None for a text of another version, which tells more or less."""
    words = text.split()
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    devices, memory, weights = map(int, words)
    return Need(devices=devices, memory=memory, weights=weights)
