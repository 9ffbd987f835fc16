"""openai-agents: OpenAI's agents, on chats and on responses."""

import os
import subprocess
import tempfile
from pathlib import Path

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

PACKAGE = "openai-agents"
_NAME = os.environ["SAX_CLIENTS_AGENT_MODEL"]
set_tracing_disabled(True)


def turns_by_responses() -> None:
    """`Runner.run_sync` by responses: 20 turns of a shell, a scripted model"""
    _run(OpenAIResponsesModel(_NAME, _client()))


def turns_by_chats() -> None:
    """`Runner.run_sync` by chats: 20 turns of a shell, a scripted model"""
    _run(OpenAIChatCompletionsModel(_NAME, _client()))


def _client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=os.environ["SAX_CLIENTS_AGENT_URL"] + "/v1", api_key="none")


def _run(model: Model) -> None:
    with tempfile.TemporaryDirectory() as folder:

        @function_tool
        def bash(command: str) -> str:
            """Runs a command of a shell."""
            return subprocess.check_output(command, shell=True, text=True, cwd=folder)

        agent = Agent(name="turns", model=model, tools=[bash])
        said = Runner.run_sync(agent, "Do the turns.", max_turns=25).final_output
        assert said == "All turns are done.", said
        assert len(Path(folder, "turns.txt").read_text().split()) == 20
