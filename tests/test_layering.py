"""Who may import whom: read from the source, so that a wrong import fails even where it is lazy.

The rooms meet on the wire: everything imports `sax`, nothing imports another room. Within the model
server the engine sees a Runner only, models know no engine, and the planning half knows no jax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"sax", "admin_server", "model_server", "http_gateway"}
FRAMEWORKS = {"jax", "jaxlib", "flax", "orbax", "fastapi", "starlette", "uvicorn", "obstore"}

# Path prefix -> top-level modules and dotted prefixes that may not be imported below it.
# Every line that fits a file applies.
FORBIDDEN: dict[str, set[str]] = {
    "sax/": FRAMEWORKS | ROOMS - {"sax"},
    # The admin's status page is small HTTP; fastapi is for the gateway.
    "admin_server/": (FRAMEWORKS - {"obstore", "starlette", "uvicorn"})
    | ROOMS - {"sax", "admin_server"},
    "http_gateway/": (FRAMEWORKS - {"fastapi", "starlette", "uvicorn"})
    | ROOMS - {"sax", "http_gateway"},
    "model_server/": {"fastapi", "starlette", "uvicorn", "obstore"}
    | ROOMS - {"sax", "model_server"},
    "model_server/engine/types.py": {"jax", "jaxlib", "flax"},
    "model_server/engine/pages.py": {"jax", "jaxlib", "flax"},
    "model_server/engine/scheduler.py": {"jax", "jaxlib", "flax"},
    **{
        f"model_server/disaggregation/{name}.py": {"jax", "jaxlib", "flax"}
        for name in (
            "apart",
            "contract",
            "elsewhere",
            "keeper",
            "page_room",
            "prefiller",
            "tickets",
        )
    },
    "model_server/models/": {"model_server.engine"},
    "model_server/kernels/": {"sax", "model_server.engine", "model_server.models", "grpc"},
    # The command line's start is felt at every call.
    "sax/cli/": {"numpy"},
}
# The one file that may after all, because a root in a bucket is read there.
ALLOWED: dict[str, set[str]] = {"sax/location.py": {"obstore"}}


def sources() -> list[Path]:
    return [path for room in sorted(ROOMS) for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, by full dotted name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def forbidden_for(path: str) -> set[str]:
    rules = (names for prefix, names in FORBIDDEN.items() if path.startswith(prefix))
    return set().union(*rules) - ALLOWED.get(path, set())


def crosses(module: str, forbidden: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in forbidden)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_file_imports_what_its_room_may_not_know(room: str) -> None:
    wrong = [
        f"{name} imports {module}"
        for path in sources()
        if (name := path.relative_to(ROOT).as_posix()).startswith(f"{room}/")
        for module in imported(path)
        if crosses(module, forbidden_for(name))
    ]
    assert not wrong


def test_every_rule_names_a_path_that_exists() -> None:
    assert all((ROOT / prefix).exists() for prefix in [*FORBIDDEN, *ALLOWED])


def test_an_import_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    """The check itself: lazy, relative and aliased imports count."""
    file = ROOT / "sax" / "cli" / "main.py"
    assert "sax.cli.failure" in set(imported(file))
    assert crosses("jax.numpy", {"jax"})
    assert not crosses("jaxtyping", {"jax"})
    assert "jax" in forbidden_for("sax/types.py")
    assert "obstore" in forbidden_for("sax/types.py")
    assert "obstore" not in forbidden_for("sax/location.py")
    assert "model_server.engine" in forbidden_for("model_server/models/llama.py")
