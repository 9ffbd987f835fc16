"""Names that users hold: they stay, whatever moves behind them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import tomllib
from pathlib import Path

import pytest

from tests.each_case import each_case

SAXML_CALLS = """
    AdminOptions AudioModel CustomModel GetACL LanguageModel List ListAll ListDetail Model
    ModelDetail ModelOptions ModelServerTypeStat MultimodalModel Options Publish SetACL
    StartDebugPort Stats Status StatusCode StatusNotOk Unpublish Update VisionModel WaitForReady
"""
VALUES = """
    CellId GenerateRequest JoinedServer Message ModelId ModelSpec PublishedModel ReplyOptions
    SamplingParams SaxError TokenChunk WatchEvent
"""
PUBLIC = {
    "sax": f"AsyncClient Client {SAXML_CALLS} {VALUES}",
    "sax.client": "AsyncClient Change Client WatchEvent in_session",
    "model_server.custom": "Arrays CustomMethod CustomModel CustomProgram",
}
CALLS = """
    abort ask_service cell_acl change_weights classify close custom detokenize embed
    embed_counted embed_tokens entities events generate generate_to gradient list list_all log
    overview pause phases promote publish rerank resume rights rollback saxml_embed saxml_generate
    saxml_generate_counted saxml_generate_stream score score_pairs servers set_cell_acl sleep speak
    speak_stream stats tokenize tokenize_texts transcribe transcribe_stream unpublish update
    update_weights versions wait_for_ready wake watch weights
"""
RUN = """
    admin_server http_gateway model_server model_server.precompile model_server.slice_check
    model_server.plan sax.cli sax.cli.saxutil
"""


@each_case("module", PUBLIC)
def test_a_module_has_its_public_names(module: str) -> None:
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(PUBLIC[module].split())
    for name in imported.__all__:
        assert getattr(imported, name).__name__ == name or name == "Arrays"


@pytest.mark.parametrize("name", ["AsyncClient", "Client"])
def test_a_client_has_its_calls(name: str) -> None:
    client = getattr(importlib.import_module("sax.client"), name)
    assert sorted(call for call in dir(client) if not call.startswith("_")) == CALLS.split()


def test_every_installed_command_is_a_function() -> None:
    root = Path(__file__).parents[2]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"admin_config", "sax", "sax-serving", "saxutil"}
    for place in scripts.values():
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@each_case("module", RUN.split())
def test_a_module_can_be_run(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    if spec.submodule_search_locations is not None:  # python -m runs a package's __main__
        spec = importlib.util.find_spec(f"{module}.__main__")
        assert spec is not None
        assert spec.origin is not None
    assert _acts_when_run(Path(spec.origin))


def _acts_when_run(path: Path) -> bool:
    """Look for a call to the file's main: at the end, or under `if __name__ == "__main__"`."""
    last = ast.parse(path.read_text()).body[-1]
    if isinstance(last, ast.If):
        assert ast.unparse(last.test) == "__name__ == '__main__'"
        last = last.body[-1]
    return "main()" in ast.unparse(last)
