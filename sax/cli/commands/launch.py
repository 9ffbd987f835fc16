"""The `launch` command: starts a coding agent that asks this cell's models.

A program is never told more than its own makers document, and no file of its configuration is
written.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn

import typer

from sax.auth.credentials import TOKEN_VARIABLE
from sax.cli.model_argument import full_name
from sax.command import CommandResult, say, wants_json
from sax.config import GATEWAY_PORT
from sax.errors import InvalidRequest, ModelNotFound, Unavailable
from sax.format import listing, quoted

_TIMEOUT_S = 10.0
_TOLD = 200  # characters of a reply that errors quote
KEY_VARIABLE = "SAX_AGENT_KEY"  # read by programs that are told the name of a variable
NO_KEY = "none"  # most programs refuse to start without one


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTarget:
    """What an agent is to ask."""

    url: str  # of the gateway, without a path
    model: str
    key: str = NO_KEY
    context: int = 0  # tokens of one conversation; 0: unknown

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class AgentLaunch:
    """A program with the variables and the first arguments that it needs."""

    program: str
    environ: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    install: str = field(default="", compare=False)  # command that installs it


def claude(target: AgentTarget) -> AgentLaunch:
    """Anthropic's Claude Code, by /v1/messages."""
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    sizes = tuple(f"ANTHROPIC_DEFAULT_{each}_MODEL" for each in ("OPUS", "SONNET", "HAIKU"))
    environ = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_API_KEY": "",  # one of Anthropic's would be sent, too
        **dict.fromkeys((*models, *sizes), target.model),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context:
        # Else it takes the context for that of Anthropic's models.
        environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
        environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
    return AgentLaunch("claude", environ, install="npm install -g @anthropic-ai/claude-code")


def codex(target: AgentTarget) -> AgentLaunch:
    """OpenAI's Codex, by /v1/responses."""
    provider = {
        "name": "sax",
        "base_url": target.v1,
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
    }
    # Values are TOML; a text is the same there as in JSON.
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    settings = ['model_provider="sax"', f"model_providers.sax={{{table}}}"]
    if target.context:
        settings.append(f"model_context_window={target.context}")
    arguments = [word for each in settings for word in ("-c", each)]
    return AgentLaunch(
        "codex",
        {KEY_VARIABLE: target.key},
        (*arguments, "-m", target.model),
        install="npm install -g @openai/codex",
    )


def opencode(target: AgentTarget) -> AgentLaunch:
    """OpenCode, by /v1/chat/completions; its configuration comes in a variable."""
    model: dict[str, object] = {"name": target.model}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.context // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "sax",
        "options": {"baseURL": target.v1, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    config = {"provider": {"sax": provider}, "model": f"sax/{target.model}"}
    environ = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), KEY_VARIABLE: target.key}
    return AgentLaunch("opencode", environ, install="npm install -g opencode-ai")


def qwen(target: AgentTarget) -> AgentLaunch:
    """Qwen Code, by /v1/chat/completions."""
    environ = {
        "OPENAI_BASE_URL": target.v1,
        "OPENAI_API_KEY": target.key,
        "OPENAI_MODEL": target.model,
    }
    arguments = ("--auth-type", "openai")
    return AgentLaunch("qwen", environ, arguments, install="npm install -g @qwen-code/qwen-code")


def aider(target: AgentTarget) -> AgentLaunch:
    """aider, by /v1/chat/completions."""
    environ = {
        "OPENAI_API_BASE": target.v1,
        "OPENAI_API_KEY": target.key,
        "AIDER_MODEL": f"openai/{target.model}",
    }
    return AgentLaunch("aider", environ, install="pip install aider-chat")


def goose(target: AgentTarget) -> AgentLaunch:
    """Goose, by /v1/chat/completions."""
    environ = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": target.model,
        "OPENAI_HOST": target.url,
        "OPENAI_API_KEY": target.key,
    }
    return AgentLaunch("goose", environ, install="https://block.github.io/goose has its installers")


AGENTS: Mapping[str, Callable[[AgentTarget], AgentLaunch]] = {
    each.__name__: each for each in (claude, codex, opencode, qwen, aider, goose)
}


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
        bool,
        typer.Option("--print", help="Print variables and command, as --json does; start nothing."),
    ] = False,
) -> CommandResult:
    """Start a coding agent that asks a model of this cell.

    The agent gets the gateway's address, the key and the model by variables and arguments of its
    own; none of its files is changed. What follows "--" is passed on to it. Most agents need a
    context of some 30,000 tokens; a model whose chat template has no tools is told them
    in sax's own form.

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
    if show or wants_json():
        value = {"environ": dict(made.environ), "command": command}
        return CommandResult(value, "\n".join([*_exports(made), shlex.join(command)]))
    _start(made, command)


def _start(made: AgentLaunch, command: list[str]) -> NoReturn:
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
