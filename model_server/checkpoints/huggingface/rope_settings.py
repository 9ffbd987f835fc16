"""Settles settings of rotary positions that a config.json gives twice.

Files of transformers 4 say rope_theta and rope_scaling, those of transformers 5 rope_parameters;
people add one by hand to a file that has the other. What counts is what transformers 5 takes:
rope_scaling in place of all of rope_parameters, and of two bases the one among the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sax.errors import CheckpointError

BASE = 10000.0  # if no setting says it
_KINDS = ("rope_type", "type")


def settle_rope(config: dict[str, Any]) -> None:
    """Change a config.json, and the configs in it, so that all places of a setting say the same.

    Raises CheckpointError where transformers would drop settings without a word.
    """
    for name, inner in config.items():
        if name.endswith("_config") and isinstance(inner, dict):
            settle_rope(inner)
    given, scaling = (_settings(config, name) for name in ("rope_parameters", "rope_scaling"))
    if given and scaling:
        given = config["rope_parameters"] = _replaced(config, given, scaling)
    found = (given or scaling).get("rope_theta")
    if found is not None and config.get("rope_theta") is not None:
        config["rope_theta"] = found


def spell_both(config: dict[str, Any]) -> None:
    """Add the older spelling to a config.json that has the newer one."""
    given = _settings(config, "rope_parameters")
    if not given:
        return
    config.setdefault("rope_theta", given.get("rope_theta", BASE))
    rest = {key: value for key, value in given.items() if key != "rope_theta"}
    scaled = given.get("rope_type", given.get("type", "default")) != "default"
    config["rope_scaling"] = rest if scaled else None


def check_outside(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    """Raise CheckpointError for settings that stand outside of the config that has its own.

    inner: the text model's, which alone counts in transformers.
    """
    own = _settings(inner, "rope_parameters") or _settings(inner, "rope_scaling")
    for name in ("rope_parameters", "rope_scaling"):
        given = _settings(outer, name)
        if own and given and _stretch(given) != _stretch(own):
            raise CheckpointError(
                f"config.json has {name} outside of text_config, where transformers does not read "
                "it: write all settings into the rope_parameters of text_config"
            )


def _stretch(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in one spelling, without the base."""
    named = (*_KINDS, "rope_theta")
    kind = settings.get("rope_type") or settings.get("type") or "default"
    rest = {key: value for key, value in settings.items() if key not in named and value is not None}
    return rest | {"rope_type": "default" if kind == "mrope" else kind}


def _settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings, none for what is no object: the readers refuse it in words."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _replaced(
    config: Mapping[str, Any], given: dict[str, Any], scaling: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of rope_scaling, with the base that config.json has outside."""
    base = config.get("rope_theta")
    made = ({} if base is None else {"rope_theta": base}) | scaling
    lost = {
        key: value
        for key, value in given.items()
        if key not in _KINDS and value is not None and made.get(key, config.get(key)) is None
    }
    by_kind = any(isinstance(value, Mapping) for value in given.values())
    if lost or by_kind:
        raise CheckpointError(
            f"config.json has rope_scaling beside rope_parameters, whose {', '.join(lost or given)}"
            " it does not have and transformers would drop: write all settings into "
            "rope_parameters and remove rope_scaling"
        )
    return made
