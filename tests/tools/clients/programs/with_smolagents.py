"""smolagents: agents that call tools, of Hugging Face."""

import os
import subprocess
import tempfile
from pathlib import Path

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

PACKAGE = "smolagents"
_MODEL = OpenAIServerModel(
    os.environ["SAX_CLIENTS_AGENT_MODEL"],
    api_base=os.environ["SAX_CLIENTS_AGENT_URL"] + "/v1",
    api_key="none",
)


def turns() -> None:
    """`ToolCallingAgent.run`: 20 turns of a shell, a scripted model"""
    _run(stream=False)


def streamed_turns() -> None:
    """`ToolCallingAgent.run` with streamed outputs: 20 turns of a shell, a scripted model"""
    _run(stream=True)


def _run(*, stream: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:

        @tool
        def bash(command: str) -> str:
            """Runs a command.

            Args:
                command: of a shell.
            """
            return subprocess.check_output(command, shell=True, text=True, cwd=folder)

        agent = ToolCallingAgent([bash], _MODEL, max_steps=25, stream_outputs=stream)
        said = agent.run("Do the turns.")
        assert said == "All turns are done.", said
        assert len(Path(folder, "turns.txt").read_text().split()) == 20
