"""The MODEL argument of commands: a whole name, or its last part; it completes from the cell."""

from __future__ import annotations

from typing import Annotated

import typer

from sax.cli.terminal import admin_of, client_at, open_client
from sax.errors import InvalidName, ModelNotFound, SaxError
from sax.format import listing, quoted
from sax.names import ModelId, nearest

_COMPLETE_S = 1.0  # somebody waits at a prompt
_CELL = "test"  # what `sax up` calls a cell


def full_name(known: list[str], text: str) -> str:
    """Return the model that a name or its last part means.

    Raises InvalidName if several do, ModelNotFound if none does.
    """
    if text in known or text.startswith("/"):
        return text
    found = [name for name in known if name.rpartition("/")[2] == text]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidName(
            f"{quoted(text)} may be {listing(sorted(found))}: write the whole name", param="model"
        )
    near = nearest(text, known)
    hint = f"the nearest names are {', '.join(near)}" if near else "`sax ls` shows which are"
    raise ModelNotFound(f"no published model is called {quoted(text)}; {hint}", param="model")


def _found(ctx: typer.Context, text: str) -> str:
    if ctx.resilient_parsing or text.startswith("/"):
        return text
    with open_client(ctx) as client:
        return full_name([each.spec.model_id for each in client.list_all()], text)


def _found_if_given(ctx: typer.Context, text: str | None) -> str | None:
    return None if text is None else _found(ctx, text)


def _new(ctx: typer.Context, text: str) -> str:
    """Return the whole name of a model to publish: in the cell of the others."""
    if ctx.resilient_parsing or "/" in text:
        return text
    with open_client(ctx) as client:
        cells = {ModelId.parse(each.spec.model_id).cell for each in client.list_all()}
    return str(ModelId.parse(f"/sax/{min(cells, default=_CELL)}/{text}"))


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the published models that begin so, in whichever form; none if no cell answers."""
    try:
        known = _published(_address(ctx))
    except SaxError:
        return []
    shorts = [name.rpartition("/")[2] for name in known]
    names = known if incomplete.startswith("/") else shorts
    return sorted({name for name in names if name.startswith(incomplete)})


def _address(ctx: typer.Context) -> str | None:
    """Return the cell that the line so far names: while it is completed, no command has run."""
    given: object = ctx.find_root().params.get("admin")
    return given if isinstance(given, str) else admin_of(ctx)


def _published(admin: str | None) -> list[str]:
    with client_at(admin) as client:
        return [each.spec.model_id for each in client.list_all(timeout_s=_COMPLETE_S)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="/sax/<cell>/<model>, or its last part.",
        callback=_found,
        autocompletion=_complete,
    ),
]
NewModel = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>, or <model> alone.", callback=_new),
]
OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="/sax/<cell>/<model>, or its last part.",
        callback=_found_if_given,
        autocompletion=_complete,
    ),
]
