"""pydantic-ai: agents with types, of pydantic's makers."""

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PACKAGE = "pydantic-ai-slim"
_NAME = os.environ["SAX_CLIENTS_AGENT_MODEL"]


def turns() -> None:
    """`Agent.run` by chats: 20 turns of a shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(_agent(folder, OpenAIChatModel(_NAME, provider=_provider())).run(_ASKED))
        _check(said.output, folder)


def streamed_turns() -> None:
    """`Agent.run_stream_events` by chats: 20 turns of a shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        model = OpenAIChatModel(_NAME, provider=_provider())
        said = asyncio.run(_agent(folder, model).run(_ASKED, event_stream_handler=_seen))
        _check(said.output, folder)


def turns_by_responses() -> None:
    """`Agent.run` by responses: 20 turns of a shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        model = OpenAIResponsesModel(_NAME, provider=_provider())
        said = asyncio.run(_agent(folder, model).run(_ASKED))
        _check(said.output, folder)


_ASKED = "Do the turns."


def _provider() -> OpenAIProvider:
    return OpenAIProvider(base_url=os.environ["SAX_CLIENTS_AGENT_URL"] + "/v1", api_key="none")


async def _seen(_context: object, events: object) -> None:
    async for _ in events:
        pass


def _agent(folder: str, model: OpenAIChatModel | OpenAIResponsesModel) -> Agent:
    agent = Agent(model)

    @agent.tool_plain
    def bash(command: str) -> str:
        """Runs a command of a shell."""
        return subprocess.check_output(command, shell=True, text=True, cwd=folder)

    return agent


def _check(said: str, folder: str) -> None:
    assert said == "All turns are done.", said
    assert len(Path(folder, "turns.txt").read_text().split()) == 20
