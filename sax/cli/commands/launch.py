"""The `launch` command: starts a coding agent that asks this cell's models."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Annotated, Any

import typer

from sax.auth.credentials import TOKEN_VARIABLE
from sax.cli.agents import AGENTS, NO_KEY, AgentLaunch, AgentTarget
from sax.cli.model_argument import full_name
from sax.command import say
from sax.config import GATEWAY_PORT
from sax.errors import InvalidRequest, ModelNotFound, Unavailable
from sax.format import listing, quoted

_TIMEOUT_S = 10.0
_TOLD = 200  # characters of a reply that errors quote


def launch(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help=f"One of {', '.join(AGENTS)}.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model that the agent asks.", show_default="the only"),
    ] = None,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the gateway.")
    ] = f"http://127.0.0.1:{GATEWAY_PORT}",
    api_key: Annotated[
        str, typer.Option(envvar=TOKEN_VARIABLE, metavar="KEY", help="Key for the gateway.")
    ] = "",
    show: Annotated[
        bool, typer.Option("--print", help="Print variables and command; start nothing.")
    ] = False,
) -> None:
    """Start a coding agent that asks a model of this cell.

    The agent gets the gateway's address, the key and the model by variables and arguments of its
    own; none of its files is changed. What follows "--" is passed on to it. The model needs a chat
    template that has tools, and a context of some 30,000 tokens for most agents.

    \b
    Examples:
      sax launch claude --model qwen3
      sax launch codex -- exec "Say hello."
      sax launch opencode --print
    """
    if agent not in AGENTS:
        raise InvalidRequest(f"{quoted(agent)} is not known: give one of {', '.join(AGENTS)}")
    base = url.rstrip("/").removesuffix("/v1")
    name, context = _chosen(_models(base, api_key), model, base)
    target = AgentTarget(url=base, model=name, key=api_key or NO_KEY, context=context)
    made = AGENTS[agent](target)
    command = [made.program, *made.arguments, *ctx.args]
    if show:
        print("\n".join([*_exports(made), shlex.join(command)]))
        return
    _start(made, command)


def _start(made: AgentLaunch, command: list[str]) -> None:
    """Become the agent. Raises InvalidRequest if it is not installed."""
    path = shutil.which(made.program)
    if path is None:
        raise InvalidRequest(f"{made.program} is not installed: {made.install}")
    say(f"starting {shlex.join(command)}")
    os.execve(path, command, {**os.environ, **made.environ})


def _exports(made: AgentLaunch) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in made.environ.items()]


def _models(base: str, key: str) -> list[dict[str, Any]]:
    """Return the gateway's models. Raises Unavailable with what it says instead."""
    import httpx  # most commands start faster without it

    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.get(f"{base}/v1/models", headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(
            f"no gateway answers at {base}: {error}; start a cell with `sax up`, or give --url"
        ) from None
    if not reply.is_success:
        raise Unavailable(f"{base} answered {reply.status_code}: {reply.text[:_TOLD]}")
    return reply.json()["data"]


def _chosen(models: list[dict[str, Any]], wanted: str | None, base: str) -> tuple[str, int]:
    """Return the name of a model and its context, 0 if that is not known.

    The last part of the name, which agents show, unless several models have it.
    """
    contexts = {str(each["id"]): int(each.get("max_model_len") or 0) for each in models}
    names = [*contexts]
    if wanted is None and len(names) != 1:
        found = listing(names) if names else "none"
        raise ModelNotFound(f"{base} has the models {found}: choose one with --model")
    name = names[0] if wanted is None else full_name(names, wanted)
    if name not in contexts:
        raise ModelNotFound(f"{base} has no model {quoted(name)}; it has {listing(names)}")
    short = name.rpartition("/")[2]
    same = [each for each in names if each.rpartition("/")[2] == short]
    return (short if len(same) == 1 else name), contexts[name]
