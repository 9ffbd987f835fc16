"""What each coding agent is told: variables and arguments."""

from __future__ import annotations

import json
import tomllib

from sax.cli.commands.launch import AGENTS, AgentTarget, claude, codex, opencode

TARGET = AgentTarget(url="http://gw:8888", model="tiny", key="k", context=8192)
UNKNOWN = AgentTarget(url="http://gw:8888", model="tiny")


def test_every_agent_is_told_the_address_the_model_and_the_key() -> None:
    for name, made in AGENTS.items():
        launch = made(TARGET)
        told = " ".join([*launch.environ.values(), *launch.arguments])
        for word in ("http://gw:8888", "tiny", "k"):
            assert word in told, name
        assert launch.install, name


def test_claude_codes_models_are_all_this_one_and_its_context_is_known() -> None:
    environ = claude(TARGET).environ
    models = {value for name, value in environ.items() if name.endswith("_MODEL")}
    assert models == {"tiny"}
    assert environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "8192"
    assert environ["ANTHROPIC_API_KEY"] == ""
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in claude(UNKNOWN).environ


def test_codexs_settings_are_toml() -> None:
    launch = codex(TARGET)
    settings = tomllib.loads("\n".join(launch.arguments[1:-2:2]))
    provider = settings["model_providers"]["sax"]
    assert provider["base_url"] == "http://gw:8888/v1"
    assert launch.environ[provider["env_key"]] == "k"
    assert settings["model_context_window"] == 8192
    assert "model_context_window" not in str(codex(UNKNOWN).arguments)


def test_opencodes_configuration_names_its_provider() -> None:
    config = json.loads(opencode(TARGET).environ["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "sax/tiny"
    assert config["provider"]["sax"]["models"]["tiny"]["limit"]["context"] == 8192
