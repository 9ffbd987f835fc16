"""The `token`, `getacl` and `setacl` commands: tokens and access lists."""

from __future__ import annotations

from typing import Annotated

import typer

from sax.auth.acl import ALL_METHODS, check_method, parse_acl
from sax.auth.key_limits import parse_options
from sax.auth.token_file import new_token, token_line
from sax.cli.model_argument import Model
from sax.cli.terminal import open_client
from sax.command import CommandResult, say
from sax.errors import UnsupportedParameter
from sax.names import ModelId

_ALL = "all"


def token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Owner: a person, a program or a server.")
    ],
    rpm: Annotated[int, typer.Option(help="Requests a minute; 0: no limit.", min=0)] = 0,
    tpm: Annotated[
        int, typer.Option(help="Tokens a minute, of prompts and answers; 0: no limit.", min=0)
    ] = 0,
    concurrent: Annotated[int, typer.Option(help="Requests at once; 0: no limit.", min=0)] = 0,
    models: Annotated[
        str, typer.Option(metavar="GLOB,...", help="Models, by full or short name; else every one.")
    ] = "",
) -> CommandResult:
    """Create a token.

    Prints the token once, on stdout, for its owner to keep (as SAX_TOKEN or as an API key). Prints
    on stderr the line for the file that servers read with --tokens; that file holds no secrets.
    With --json both are in one object.
    Limits become options of the line; each gateway applies them to the name.

    \b
    Examples:
      sax token alice
      sax token alice 2>> tokens.txt
      sax token batch --rpm 60 --tpm 100000 --concurrent 4 --models '/sax/prod/*,smollm2'
    """
    secret = new_token()
    numbers = {"rpm": rpm, "tpm": tpm, "concurrent": concurrent}
    options = [f"{option}={number}" for option, number in numbers.items() if number]
    limits = parse_options([*options, *([f"models={models}"] if models else [])])
    line = token_line(name, secret, limits)

    def show() -> None:
        print(secret)
        say(line)

    return CommandResult({"name": name, "token": secret, "line": line}, show)


def getacl(
    ctx: typer.Context,
    model: Model,
    method: Annotated[
        str, typer.Argument(metavar="[METHOD]", help="lm.generate, ...; all prints a table.")
    ] = "",
) -> CommandResult:
    """Show who may call a model.

    With METHOD, shows who may call that method; without, who else may change the model.

    \b
    Examples:
      sax getacl /sax/test/smollm2
      sax getacl /sax/test/smollm2 lm.generate
      sax getacl /sax/test/smollm2 all
    """
    with open_client(ctx) as client:
        spec = client.list(_model_id(model)).spec
    if method == _ALL:
        acls = dict(sorted(spec.acls.items()))
        lines = "\n".join(f"{name} {acl}" for name, acl in acls.items())
        return CommandResult(acls, (lambda: None) if not acls else lines)
    acl = spec.acls.get(method, "") if method else spec.admin_acl
    return CommandResult({"method": method or None, "acl": acl}, acl)


def setacl(
    ctx: typer.Context,
    model: Model,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[METHOD] NAMES",
            help="The method (all: every method without its own list), then comma-separated "
            'names, * for everyone with a token, or "" to remove the list.',
        ),
    ],
) -> CommandResult:
    """Set who may call a model.

    With METHOD, sets who may call that method; without, who else may change the model.

    Takes effect on every replica without a reload; running requests finish. A list for lm.generate
    also covers lm.generate_stream, unless that has its own list, and vice versa.

    \b
    Examples:
      sax setacl /sax/test/smollm2 lm.generate alice,bob
      sax setacl /sax/test/smollm2 all alice
      sax setacl /sax/test/smollm2 carol
    """
    if len(words) > 2:
        raise typer.BadParameter("give at most a method and a list: names with commas, no spaces")
    name, acl = _model_id(model), words[-1]
    parse_acl(acl, "acl")
    with open_client(ctx) as client:
        if len(words) == 1:
            client.update(name, admin_acl=acl)
        else:
            method = ALL_METHODS if words[0] == _ALL else check_method(words[0], "method")
            acls = {**client.list(name).spec.acls, method: acl}
            client.update(name, acls={key: text for key, text in acls.items() if text.strip()})
    return CommandResult({"model": name, "done": "updated"}, f"updated {name}")


def _model_id(name: str) -> str:
    if name.count("/") == 2:
        raise UnsupportedParameter(
            f"{name} is a cell, whose list is set by its admin server's --admin_acl; name a model",
            param="model",
        )
    return str(ModelId.parse(name))
