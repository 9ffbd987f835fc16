"""Ropes of families that rotate part of each head, their kinds of layers differently, or by
triples of positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.rope import Rope, axes_in_a_row, axes_in_turn, rope_of
from sax.errors import CheckpointError

FULL, SLIDING = "full_attention", "sliding_attention"


def partial_rope(
    keys: ConfigKeys, head_dim: int, *, share: float, interleaved: bool = False
) -> Rope:
    """Build the rope over the first part of each head.

    share: of a head's dimensions, if the config gives none. Raises CheckpointError.
    """
    given = settings_of(keys)
    share = given.pop("partial_rotary_factor", keys.number("partial_rotary_factor", share))
    return rope_of(
        keys.all | {"rope_parameters": given},
        rotated_part(keys, head_dim, share),
        interleaved=interleaved,
    )


def settings_of(keys: ConfigKeys) -> dict[str, Any]:
    """Return the rope's settings by either of their names."""
    given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has {given!r} where its rope scaling should be")
    return dict(given)


def rotated_part(
    keys: ConfigKeys, head_dim: int, share: Any, name: str = "partial_rotary_factor"
) -> int:
    """Return how many dimensions of a head rotate. Raises CheckpointError."""
    if type(share) not in (int, float):
        raise CheckpointError(f"config.json has {name} = {share!r}, not a number")
    rotated = int(head_dim * share)
    if not 0 < rotated <= head_dim or rotated % 2:
        raise CheckpointError(
            f"config.json has {name} = {share}, which would rotate {rotated} of a "
            f"head's {head_dim} dimensions; the {keys.family} family rotates an even number of them"
        )
    return rotated


def ropes_by_kind(
    keys: ConfigKeys,
    head_dim: int,
    given: Mapping[str, Any],
    bases: Mapping[str, float],
    *,
    share: float | None = None,
) -> dict[str, Rope]:
    """Build the rope of each kind of layer.

    given: rope settings by kind. bases: by kind, where the settings have none. share: of a head's
    dimensions that rotate, where the settings do not say; None: all rotate, and none may say.
    Raises CheckpointError for settings of no kind: they would change nothing.
    """
    if others := [name for name, value in given.items() if name not in bases and value is not None]:
        raise CheckpointError(
            f"config.json has {', '.join(others)} among its rope settings; the {keys.family} "
            f"family has them by kind of layer: write them below {' or '.join(bases)}"
        )
    context = {"max_position_embeddings": keys.whole("max_position_embeddings")}

    def made(kind: str, base: float) -> Rope:
        settings, rotated = {"rope_theta": base} | dict(given.get(kind) or {}), head_dim
        if share is not None:
            found = settings.pop("partial_rotary_factor", None)
            rotated = rotated_part(keys, head_dim, share if found is None else found)
        return rope_of(context | {"rope_parameters": settings}, rotated)

    return {kind: made(kind, base) for kind, base in bases.items()}


def triple_rope(
    keys: ConfigKeys,
    head_dim: int,
    sections: Sequence[int],
    *,
    base: float,
    in_turn: bool,
    share: float | None = None,
) -> Rope:
    """Build the rope of positions that are frame, row and column. Raises CheckpointError.

    sections: pairs that each of the three turns, base: of the frequencies, and share: of a head's
    dimensions, if the config gives none; without a share all rotate. in_turn: the three take turns,
    else they lie in a row.
    """
    given = settings_of(keys)
    if share is not None:
        share = given.pop("partial_rotary_factor", share)
        head_dim = rotated_part(keys, head_dim, share)
    axes = _axes(keys, given, head_dim // 2, sections, in_turn)
    for name in ("rope_type", "type"):
        if given.get(name) == "mrope":  # the older name of triples that are not stretched
            given[name] = "default"
    theta = {"rope_theta": given.get("rope_theta") or keys.get("rope_theta") or base}
    rope = rope_of(keys.all | theta | {"rope_parameters": given | theta}, head_dim)
    return replace(rope, axes=axes)


def _axes(
    keys: ConfigKeys, given: dict[str, Any], pairs: int, sections: Sequence[int], in_turn: bool
) -> tuple[int, ...]:
    """Take the sections out of a rope's settings; return the axis of each pair."""
    found = given.pop("mrope_section", None)
    turns = [given.pop(key, in_turn) is in_turn for key in ("mrope_interleaved", "interleaved")]
    if not all(turns):
        raise CheckpointError(
            f"config.json has mrope_interleaved = {not in_turn}; the {keys.family} family supports "
            f"{in_turn}"
        )
    if found is None and in_turn:  # usual sections of heads of another size
        return (*axes_in_turn(sections), *(0,) * pairs)[:pairs]
    found = sections if found is None else found
    if not _are_sections(found, pairs):
        raise CheckpointError(
            f"config.json has mrope_section = {found!r}; give three numbers of pairs, together the "
            f"{pairs} that a head rotates"
        )
    return (axes_in_turn if in_turn else axes_in_a_row)(found)


def _are_sections(found: Any, pairs: int) -> bool:
    if not isinstance(found, list | tuple) or len(found) != 3:
        return False
    return all(type(each) is int and each >= 0 for each in found) and sum(found) == pairs
