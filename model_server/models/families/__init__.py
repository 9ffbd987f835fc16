"""Families as their modules declare them: a module is imported when one of its models is made.

Importing all of them took a sixth of the processor time in which a model server starts. A FAMILY
is read from its module's source if it is a call with literals and a function; another is imported.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from model_server.models.layers.embedder import EmbedderFamily, EmbedRecipe
from model_server.models.recipe import Family, Recipe

AnyFamily = Family | EmbedderFamily

_Configure = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Any]
_KINDS = {"Family": Family, "EmbedderFamily": EmbedderFamily}
_START = "\nFAMILY = "


def declared_families(package: ModuleType) -> tuple[AnyFamily, ...]:
    """Return the family of each module below a package; language models come before embedders."""
    found = (family for folder in package.__path__ for family in _below(Path(folder), package))
    return tuple(sorted(found, key=lambda each: (isinstance(each, EmbedderFamily), each.path)))


def _below(folder: Path, package: ModuleType) -> Iterator[AnyFamily]:
    for path in folder.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if (at := source.rfind(_START)) >= 0:
            name = ".".join((package.__name__, *path.relative_to(folder).with_suffix("").parts))
            yield _literal(name, source[at:]) or importlib.import_module(name).FAMILY


def _literal(module: str, source: str) -> AnyFamily | None:
    """Return what a source declares; None: it must run to tell."""
    match ast.parse(source).body[0]:
        case ast.Assign(
            value=ast.Call(ast.Name(kind), args=[*told, ast.Name()], keywords=named)
        ) if kind in _KINDS:
            try:
                values = [ast.literal_eval(each) for each in told]
                fields = {str(each.arg): ast.literal_eval(each.value) for each in named}
            except ValueError:
                return None
            return _KINDS[kind](*values, _configured_by(module), **fields)
    return None


def _configured_by(module: str) -> _Configure:
    """Return what configures a family once its module is imported."""

    def configure(
        config: Mapping[str, Any] | None, values: Mapping[str, Any]
    ) -> Recipe | EmbedRecipe:
        return importlib.import_module(module).FAMILY.configure(config, values)

    configure.__module__ = module  # whose words the docs repeat
    return configure
