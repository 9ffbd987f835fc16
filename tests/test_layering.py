"""Who may import whom: read from the source, so that a wrong import fails even where it is lazy.

Packages meet on the wire: everything imports `sax`, nothing imports another package. Inside a
package imports go down its ladder of rooms, and in no folder do they run in a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import house, house_weight

PACKAGES = set(house.PACKAGES)
FRAMEWORKS = {"jax", "jaxlib", "flax", "orbax", "fastapi", "starlette", "uvicorn", "obstore"}
JAX = {"jax", "jaxlib", "flax"}

# Path prefix -> (modules that may not be imported below it, why). Every line that fits applies.
FORBIDDEN: dict[str, tuple[set[str], str]] = {
    "sax/": (FRAMEWORKS | PACKAGES - {"sax"}, "sax is what two processes agree on: light, alone"),
    "admin_server/": (
        FRAMEWORKS - {"obstore", "starlette", "uvicorn"} | PACKAGES - {"sax", "admin_server"},
        "the admin server computes nothing, and its status page is small HTTP",
    ),
    "http_gateway/": (
        FRAMEWORKS - {"fastapi", "starlette", "uvicorn"} | PACKAGES - {"sax", "http_gateway"},
        "the gateway computes nothing and asks the others over the wire",
    ),
    "model_server/": (
        {"fastapi", "starlette", "uvicorn", "obstore"} | PACKAGES - {"sax", "model_server"},
        "a model server speaks gRPC and asks the others over the wire",
    ),
    "k8s/": (FRAMEWORKS | PACKAGES - {"sax", "k8s"}, "manifests are made without a server"),
    **{
        f"model_server/engine/{name}.py": (JAX, "the planning half of the engine is pure")
        for name in (
            *("types", "paging/pool", "paging/prefix_cache", "scheduler", "sequence", "registry"),
            *("parts/encodes", "media"),
        )
    },
    **dict.fromkeys(
        (
            "model_server/disaggregation/contract.py",
            "model_server/disaggregation/disaggregation.py",
            "model_server/disaggregation/handed_pages.py",
            "model_server/disaggregation/handoff.py",
            "model_server/disaggregation/handoff_runner.py",
            "model_server/disaggregation/prefill_servers.py",
            "model_server/disaggregation/disaggregation.py",
            "model_server/serving/prefiller.py",
            "model_server/serving/remote_prefill.py",
        ),
        (JAX, "only movable_pages and what is below it touches devices"),
    ),
    **dict.fromkeys(
        [
            f"model_server/models/transformers/{name}.py"
            for name in ("calls", "conversion", "graph", "tracing")
        ],
        (JAX, "models are traced in a process that has torch and no device"),
    ),
    "model_server/pathways/scheduling/": (
        JAX | {"grpc", "asyncio", "threading", "time"},
        "what goes where and when is decided without a device, a socket or a clock",
    ),
    **dict.fromkeys(
        (f"model_server/pathways/{room}/" for room in ("link", "proxy", "resources")),
        (JAX, "the proxy server and the resource manager have no devices and start in a second"),
    ),
    "model_server/pathways/resources/roster.py": (
        {"asyncio", "grpc", "threading", "time"},
        "the roster is handed its times",
    ),
    "model_server/kernels/": ({"sax", "grpc"}, "kernels know arrays only"),
    **dict.fromkeys(
        ("admin_server", "http_gateway", "k8s", "model_server"),
        ({"sax.cli"}, "sax finds commands by entry points; what they share is in sax/command.py"),
    ),
    "sax/cli/": ({"numpy"}, "the command line's start is felt at every call"),
}
# The files that may after all: a root in a bucket is read in one, and objects in the other, which
# only the admin server and the gateway import.
ALLOWED: dict[str, set[str]] = {
    "sax/client/location.py": {"obstore"},
    "sax/storage/object_store.py": {"obstore"},
}

# Rooms from the top down: a room imports only rooms below it.
LADDERS: dict[str, list[str]] = {
    "model_server": [
        "__main__.py",
        "pathways",
        "plan",
        "process",
        "services",
        "serving",
        "loading",
        "programs",
        "multihost",
        "islands.py",
        "disaggregation",
        "grammars",
        "engine",
        "models",
        "checkpoints",
        "flags",
        "text",
        "config.py",
        "kernels",
        "sharing",
    ],
    "model_server/pathways": [
        "__main__.py",
        "roles",
        "sidecar",
        "proxy",
        "http2",
        "resources",
        "worker",
        "link",
        "scheduling",
        "protocol.py",
    ],
    "admin_server": [
        "__main__.py",
        "process.py",
        "cell_config.py",
        "machines.py",
        "api",
        "leadership.py",
        "cell",
        "config.py",
        "provisioning",
        "assignment",
        "ledger",
        "storage",
        "events.py",
        "condition.py",
    ],
    "sax": [
        "__init__.py",
        "cli",
        "command.py",
        "dialects",
        "mcp.py",
        "overrides",
        "saxml",
        "client",
        "wire",
        "flags",
        "auth",
        "tracing.py",
        "slices.py",
        "container.py",
        "config.py",
        "canary.py",
        "scaling.py",
        "look",
        "adapters.py",
        "names.py",
        "references.py",
        "types.py",
        "passes.py",
        "weights.py",
        "routed_experts.py",
        "chat.py",
        "call_form.py",
        "speech.py",
        "fields",
        "storage",
        "errors.py",
        "activity.py",
        "status.py",
        "memory_parts.py",
        "need.py",
        "memory_parts.py",
        "host.py",
        "distribution.py",
        "finding.py",
        "memory_return.py",
        "format.py",
    ],
}


def forbidden_for(path: str) -> dict[str, str]:
    """Module -> why the file may not import it."""
    rules = [rule for prefix, rule in FORBIDDEN.items() if path.startswith(prefix)]
    found = {module: why for modules, why in rules for module in modules}
    return {module: why for module, why in found.items() if module not in ALLOWED.get(path, set())}


def wrong_imports(path: str, modules: Iterator[str]) -> Iterator[str]:
    """A sentence for each import of a file that its room may not have."""
    forbidden = forbidden_for(path)
    for module in modules:
        for name, why in forbidden.items():
            if module == name or module.startswith(f"{name}."):
                yield f"{path} imports {module}: {why}"


def climbs(package: str, made: house.House) -> Iterator[str]:
    """A sentence for each import that goes up the ladder of a package."""
    ladder = [f"{package}/{room}" for room in LADDERS[package]]
    for (room, to), files in made.arrows.items():
        if ladder.index(to) < ladder.index(room):
            names = "; ".join(f"{source} imports {target}" for source, target in files)
            yield (
                f"{names}: {to} stands above {room} in {package}; move what both need down, "
                "or hand it in from above"
            )


@pytest.mark.extended
def test_no_file_imports_what_its_room_may_not_know() -> None:
    wrong = [
        sentence
        for path in house.sources()
        for sentence in wrong_imports(path.relative_to(house.ROOT).as_posix(), house.imported(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.extended
@pytest.mark.parametrize("package", LADDERS)
def test_imports_go_down_the_ladder_of_a_package(package: str) -> None:
    made = house.house(package)
    assert {f"{package}/{room}" for room in LADDERS[package]} == set(made.floors)
    wrong = list(climbs(package, made))
    assert not wrong, "\n".join(wrong)


def test_no_imports_run_in_a_circle() -> None:
    every = [house.house(place) for place in ("", *house.packages())]
    wrong = {made.name: told for made in every if (told := (*made.upward, *made.circles))}
    assert not wrong


def test_no_room_outgrows_its_budget() -> None:
    assert house_weight.over_budget() == []


def test_the_house_stays_small() -> None:
    whole = house.house()
    assert len(whole.floors) <= 24
    assert max(whole.floors.values()) <= 13


def test_every_rule_names_a_path_that_exists() -> None:
    assert all((house.ROOT / prefix).exists() for prefix in [*FORBIDDEN, *ALLOWED])


def test_an_import_is_seen_wherever_it_stands() -> None:
    """The check itself: lazy and aliased imports count, and the sentence says what is wrong."""
    file = house.ROOT / "sax" / "cli" / "command_line.py"
    assert "sax.cli.failure" in set(house.imported(file))
    told = list(wrong_imports("sax/types.py", iter(["jax.numpy", "jaxtyping", "sax.names"])))
    why = "sax is what two processes agree on: light, alone"
    assert told == [f"sax/types.py imports jax.numpy: {why}"]
    assert "obstore" in forbidden_for("sax/types.py")
    assert "obstore" not in forbidden_for("sax/client/location.py")


def test_a_climbing_import_is_named_with_both_rooms() -> None:
    arrows = {
        ("model_server/engine", "model_server/serving"): (
            ("model_server/engine/engine.py", "model_server/serving/handler.py"),
        )
    }
    made = house.House("model_server", {}, arrows, (), ())
    (told,) = climbs("model_server", made)
    assert told.startswith(
        "model_server/engine/engine.py imports model_server/serving/handler.py: "
        "model_server/serving stands above model_server/engine in model_server"
    )


@pytest.mark.extended
def test_no_class_name_stands_for_two_things() -> None:
    homes: dict[str, list[str]] = {}
    for path in house.sources():
        for node in ast.walk(house.parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(path.name)
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    # Both are names that users hold: Saxml's handle on a custom model, and the model itself.
    assert twice.keys() <= {"CustomModel"}, twice
