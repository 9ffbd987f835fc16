"""langgraph: agents as graphs, of LangChain."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

PACKAGE = "langgraph"
_MODEL = ChatOpenAI(
    model=os.environ["SAX_CLIENTS_AGENT_MODEL"],
    base_url=os.environ["SAX_CLIENTS_AGENT_URL"] + "/v1",
    api_key="none",
)


def turns() -> None:
    """a graph of `ChatOpenAI` and a `ToolNode`: 20 turns of a shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        said = _graph(folder).invoke(_ASKED, _DEEP)["messages"][-1].text
        _check(str(said), folder)


def streamed_turns() -> None:
    """the same graph, its messages streamed: 20 turns of a shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        pieces = [
            piece.text
            for piece, where in _graph(folder).stream(_ASKED, _DEEP, stream_mode="messages")
            if where["langgraph_node"] == "model"
        ]
        _check("".join(map(str, pieces)), folder)


_ASKED = {"messages": [("user", "Do the turns.")]}
_DEEP = {"recursion_limit": 60}


def _graph(folder: str) -> Any:
    @tool
    def bash(command: str) -> str:
        """Runs a command of a shell."""
        return subprocess.check_output(command, shell=True, text=True, cwd=folder)

    model = _MODEL.bind_tools([bash])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([bash]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def _check(said: str, folder: str) -> None:
    assert said.endswith("All turns are done."), said
    assert len(Path(folder, "turns.txt").read_text().split()) == 20
