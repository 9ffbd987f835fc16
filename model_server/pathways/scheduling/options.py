"""Compiler options of flags, as programs carry them.

Source: CompileOptionsProto.env_option_overrides in XLA's `xla/pjrt/proto/compile_options.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.pathways.protocol import XlaCompileOptionsProto

_BOOLEANS = {"true": True, "false": False}


def typed(text: str) -> bool | int | float | str:
    """Return a flag's value as XLA's options are typed."""
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_options(request: Any, options: Mapping[str, str]) -> None:
    """Add options to a CompileRequest that does not set them itself."""
    held = XlaCompileOptionsProto.FromString(request.compile_options.data)
    overrides = held.compile_options.env_option_overrides
    for name, text in options.items():
        if name not in overrides:
            value = typed(text)
            field = _FIELDS[type(value)]
            setattr(overrides[name], field, value)
    request.compile_options.data = held.SerializeToString()


_FIELDS: dict[type, str] = {
    bool: "bool_field",
    int: "int_field",
    float: "double_field",
    str: "string_field",
}
