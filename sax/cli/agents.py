"""Coding agents: the variables and the arguments by which each asks a gateway of ours.

Pure: `sax launch` looks for the model and starts the program. A program is never told more than its
own makers document, and no file of its configuration is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
