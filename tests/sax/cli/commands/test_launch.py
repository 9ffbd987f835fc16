"""`sax launch`: the model that an agent is told, by which variables and arguments, and the program
that is started.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sax.cli.commands.launch import AGENTS, AgentTarget, claude, codex, opencode
from sax.cli.main import app

ONE = [{"id": "/sax/test/tiny", "max_model_len": 2048}]


class Gateway(HTTPServer):
    models: list[dict[str, Any]] = ONE
    key = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Models(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        known = self.headers.get("authorization", "") == self.server.key
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": self.server.models}).encode() if known else b"no key")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def launch(*words: str) -> Result:
    return CliRunner().invoke(app, ["launch", *words])


def test_what_is_printed_sets_the_variables_and_starts_the_agent(gateway: Gateway) -> None:
    printed = launch("claude", "--url", f"{gateway.url}/v1", "--print", "--", "-p", "Say 'hi'.")
    assert printed.exit_code == 0, printed.output
    *exports, command = printed.stdout.splitlines()
    assert f"export ANTHROPIC_BASE_URL={gateway.url}" in exports
    assert "export ANTHROPIC_MODEL=tiny" in exports
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=2048" in exports
    assert shlex.split(command) == ["claude", "-p", "Say 'hi'."]


def test_a_model_is_chosen_by_name_where_there_are_several(gateway: Gateway) -> None:
    gateway.models = [*ONE, {"id": "/sax/a/twin"}, {"id": "/sax/b/twin"}]
    at = ("--url", gateway.url, "--print")
    assert "choose one with --model" in launch("aider", *at).stderr
    assert "AIDER_MODEL=openai/tiny" in launch("aider", *at, "--model", "tiny").stdout
    assert "openai//sax/b/twin" in launch("aider", *at, "--model", "/sax/b/twin").stdout
    assert launch("aider", *at, "--model", "twin").exit_code != 0
    assert "no model" in launch("aider", *at, "--model", "/sax/b/none").stderr


def test_a_key_is_sent_and_told(gateway: Gateway) -> None:
    gateway.key = "Bearer secret"
    at = ("--url", gateway.url, "--print")
    assert "401" in launch("claude", *at).stderr
    assert "ANTHROPIC_AUTH_TOKEN=secret" in launch("claude", *at, "--api-key", "secret").stdout


def test_what_cannot_be_started_is_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "give one of claude, codex" in launch("robot").stderr
    assert "sax up" in launch("claude", "--url", "http://127.0.0.1:1").stderr
    monkeypatch.setenv("PATH", "")
    missing = launch("claude", "--url", gateway.url)
    assert "npm install -g @anthropic-ai/claude-code" in missing.stderr


def test_the_agent_takes_the_place_of_the_command(gateway: Gateway, tmp_path: Path) -> None:
    agent = tmp_path / "claude"
    agent.write_text('#!/bin/sh\necho "$ANTHROPIC_MODEL $@"\nexit 3\n')
    agent.chmod(0o755)
    command = [sys.executable, "-m", "sax.cli", "launch", "claude", "--url", gateway.url]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [*command, "--", "-p", "a b"], capture_output=True, text=True, env=environ
    )
    assert (done.returncode, done.stdout) == (3, "tiny -p a b\n")


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
