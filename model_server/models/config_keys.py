"""Reading config.json: values are type-checked, and every error names its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from model_server.models.known_keys import KnownKeys
from sax.errors import CheckpointError

_Kind = TypeVar("_Kind")

# Upper bound of any count: far above every model, so it catches slips. DeepSeek-V4 and Qwen4 tell
# their layers tokens as float32, which holds every whole number up to it exactly, and not the next.
_MOST = 2**24


class ConfigKeys:
    """Values of one config.json. A null counts as absent, as Hugging Face writes it.

    Raises CheckpointError for a key that `known` does not list. `defaults` apply to missing keys,
    not to null ones. All readers but `get` raise CheckpointError; integers are at least 1 unless
    `least` says otherwise.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        known: KnownKeys,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        assert config is not None, f"the registry says that {known.family} needs a checkpoint"
        known.check(config)
        self.all = {**(defaults or {}), **config}
        self.known = known
        self.family = known.family

    def get(self, key: str, default: Any = None) -> Any:
        assert key in self.known.computed, f"{self.family} reads {key}, but does not list it"
        value = self.all.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._wanted(key, default)
        if type(value) is not int or not least <= value <= _MOST:
            raise self._wrong(key, value, f"a whole number from {least} to {_MOST}")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.whole(key)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._wanted(key, default)
        if type(value) not in (int, float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def only(self, key: str, *allowed: Any) -> Any:
        """Return a switch that must be one of `allowed`; the first if absent."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            raise self._wrong(key, value, " or ".join(map(repr, allowed)))
        return value

    def _wanted(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise CheckpointError(f"config.json has no {key}, which the {self.family} family needs")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"config.json has {key} = {value!r}; the {self.family} family supports {wanted}"
        )


_SLIDES = {"sliding_attention": True, "full_attention": False}


def sliding_layers(keys: ConfigKeys, otherwise: Callable[[int], bool]) -> list[bool]:
    """One flag per layer: `layer_types` of config.json, else `otherwise(index)`.

    Raises CheckpointError for an unsupported layer type or a list of the wrong length.
    """
    layers, given = keys.whole("num_hidden_layers"), keys.get("layer_types")
    if given is None:
        return [otherwise(index) for index in range(layers)]
    if not isinstance(given, list) or len(given) != layers:
        raise CheckpointError(
            f"config.json has num_hidden_layers = {layers} but layer_types = {given!r}; the "
            f"{keys.family} family needs one entry per layer"
        )
    return [slides_as(keys, kind) for kind in given]


def slides_as(keys: ConfigKeys, kind: Any) -> bool:
    """Return whether a layer of this kind has a window. Raises CheckpointError."""
    if kind not in _SLIDES:
        raise CheckpointError(
            f"config.json has {kind!r} in layer_types; the {keys.family} family supports "
            f"{' and '.join(_SLIDES)}"
        )
    return _SLIDES[kind]


def windows_of(
    keys: ConfigKeys, window: int | None, otherwise: Callable[[int], bool]
) -> list[int | None]:
    return [window if slides else None for slides in sliding_layers(keys, otherwise)]


def kinds_of_layers(
    keys: ConfigKeys, kinds: Mapping[str, _Kind], key: str = "layer_types"
) -> list[_Kind] | None:
    """Translate the config's name of each layer's kind; None if it names none.

    Raises CheckpointError for an unknown name or a list of the wrong length.
    """
    given = keys.get(key)
    if given is None:
        return None
    layers = keys.whole_or_none("num_hidden_layers")  # the list says it in some files
    known = isinstance(given, list) and all(type(name) is str and name in kinds for name in given)
    if not given or not known or layers not in (None, len(given)):
        *names, last = kinds
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the {keys.family} family needs one of "
            f"{', '.join(names)} and {last} for each of {layers or 'its'} layers"
        )
    return [kinds[name] for name in given]
