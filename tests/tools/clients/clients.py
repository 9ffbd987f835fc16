"""The clients that are promised to work, and the environments that they are installed in."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from tests.demo_model import ROOT

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".cache" / "clients"
PACKAGES = ENVIRONMENTS / "npm" / "node_modules"
NPM = PACKAGES / ".bin"  # programs of npm's packages


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """One client: a program of checks, run by the Python of an environment."""

    name: str  # as its makers write it
    program: str  # in programs/, without "with_" and ".py"
    environment: str = "clients"  # the group of pyproject.toml that it is installed by
    agent: str = ""  # of `sax launch`, whose program npm installs; the checks only start it
    package: str = ""  # of npm, whose functions the checks call under node

    @property
    def path(self) -> Path:
        return HERE / "programs" / f"with_{self.program}.py"

    @property
    def python(self) -> Path:
        """Its Python, which is there once `make clients` has installed it."""
        return ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def installed(self) -> bool:
        ours = [NPM / self.agent] if self.agent else []
        theirs = [PACKAGES / self.package] if self.package else []
        return all(path.exists() for path in (self.python, *ours, *theirs))

    def checks(self) -> dict[str, str]:
        """The names of its checks, and what each runs, read from the program's text."""
        functions = [
            node
            for node in ast.parse(self.path.read_text()).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ]
        return {each.name: ast.get_docstring(each) or "" for each in functions}


CLIENTS = (
    ClientProgram("openai", "openai"),
    ClientProgram("anthropic", "anthropic"),
    ClientProgram("ollama", "ollama"),
    ClientProgram("langchain-openai", "langchain_openai"),
    ClientProgram("litellm", "litellm"),
    ClientProgram("httpx", "httpx"),
    ClientProgram("lm-eval", "lm_eval"),
    ClientProgram("aiperf", "aiperf", "clients-aiperf"),
    ClientProgram("schemathesis", "schemathesis", "clients-schemathesis"),
    ClientProgram("claude-code", "claude_code", agent="claude"),
    ClientProgram("codex", "codex", agent="codex"),
    ClientProgram("opencode", "opencode", agent="opencode"),
    ClientProgram("qwen-code", "qwen_code", agent="qwen"),
    ClientProgram("aider", "aider", "clients-aider"),
    ClientProgram("openai-agents", "openai_agents", "clients-agents"),
    ClientProgram("pydantic-ai", "pydantic_ai", "clients-agents"),
    ClientProgram("smolagents", "smolagents", "clients-agents"),
    ClientProgram("langgraph", "langgraph", "clients-agents"),
    ClientProgram("ai", "ai_sdk", package="ai"),
)
