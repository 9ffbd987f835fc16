"""Who needs which package: the SDK, the command line and the control plane live without jax.

Read from the source here; the nightly test installs the base dependencies alone and serves.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.end_to_end.cell import free_ports
from tests.house import PACKAGES, ROOT, imported, sources

WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = WHOLE["project"]
CONTROL = set(PACKAGES) - {"model_server"}
BUILD = ROOT / "model_server" / "kernels" / "cpu" / "build.py"  # runs while sax is installed
# Run in processes of their own, where the extra `media` is installed.
IMAGES = ROOT / "model_server" / "sharing" / "images" / "worker.py"
SOUNDS = ROOT / "model_server" / "sharing" / "audio" / "worker.py"
VIDEOS = ROOT / "model_server" / "sharing" / "videos" / "worker.py"
# Run in a process of its own, where the extra `torch` is installed.
TRACING = {
    ROOT / "model_server" / "models" / "transformers" / f"{name}.py"
    for name in ("calls", "conversion", "tracing")
}
# Ours to ask for, though others import them: starlette reads forms, and uvicorn requests.
FOR_OTHERS = {"httptools", "python-multipart"}
# Of those that only an extra brings: whoever uses them does so where it has to.
LAZY = {"kubernetes", "traces"}
ARRAYS = {"numpy"}  # whoever hands arrays to the SDK has it
COMPUTING = (
    ("up",),
    ("plan", "m", "--topology=v5e:2x2"),
    ("demo", "README.md"),
    ("precompile", "m"),
    ("convert", "a", "b"),
    ("inspect", "a"),
)


def direct(*extras: str) -> set[str]:
    """The packages of the base and of these extras, without what extras name again."""
    texts = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    named = (Requirement(text).name for text in (*PROJECT["dependencies"], *texts))
    return {canonicalize_name(name) for name in named}


@cache
def provided() -> Mapping[str, list[str]]:
    """The packages that bring each top-level module; reading it off the environment takes long."""
    return packages_distributions()


def packages_of(module: str) -> set[str]:
    """The packages that a module may have come from."""
    top = module.partition(".")[0]
    return {canonicalize_name(name) for name in provided().get(top, [top])}


def at_once(path: Path) -> Iterator[str]:
    """The modules that a file imports whenever it is imported itself."""
    left: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            left += node.orelse if typing else list(ast.iter_child_nodes(node))  # type: ignore


def foreign(modules: Iterator[str], allowed: set[str]) -> set[str]:
    return {
        module
        for module in modules
        if module.partition(".")[0] not in sys.stdlib_module_names | {*PACKAGES, ""}
        if not packages_of(module) & allowed
    }


def of_rooms(rooms: set[str]) -> set[Path]:
    return {path for path in sources() if path.relative_to(ROOT).parts[0] in rooms}


@pytest.mark.extended
def test_the_control_plane_imports_the_base_dependencies_only() -> None:
    base = direct()
    assert not {
        (path.name, wrong) for path in of_rooms(CONTROL) for wrong in foreign(at_once(path), base)
    }


@pytest.mark.extended
def test_the_sdk_and_the_command_line_ask_for_at_most_twelve_packages() -> None:
    modules = [module for path in of_rooms({"sax"}) for module in imported(path)]
    used = {package for module in modules for package in packages_of(module)} & direct()
    assert {"grpcio", "typer"} <= used
    assert len(used) <= 12, used


@pytest.mark.extended
def test_what_it_imports_later_is_in_an_extra_for_it() -> None:
    allowed = direct(*LAZY) | ARRAYS
    assert not {
        (path.name, wrong)
        for path in of_rooms(CONTROL)
        for wrong in foreign(imported(path), allowed)
    }


@pytest.mark.extended
def test_the_model_server_imports_what_its_extra_brings() -> None:
    allowed = direct("cpu")
    assert not {
        (path.name, wrong)
        for path in of_rooms({"model_server"}) - {BUILD, IMAGES, SOUNDS, VIDEOS, *TRACING}
        for wrong in foreign(imported(path), allowed)
    }
    for path in (IMAGES, SOUNDS, VIDEOS):
        assert not foreign(imported(path), allowed | direct("media"))
    for path in TRACING:
        assert not foreign(imported(path), allowed | direct("torch"))


def test_what_builds_sax_imports_what_a_build_brings() -> None:
    assert WHOLE["tool"]["setuptools"]["cmdclass"]["build_ext"].startswith(
        ".".join(BUILD.relative_to(ROOT).with_suffix("").parts)
    )
    wanted = (Requirement(text).name for text in WHOLE["build-system"]["requires"])
    assert not foreign(imported(BUILD), {canonicalize_name(name) for name in wanted})


@pytest.mark.extended
def test_nothing_is_asked_for_that_nobody_imports() -> None:
    used = {
        package
        for path in sources()
        for module in imported(path)
        for package in packages_of(module)
    }
    # The last: for people's own models, which save and restore with it.
    assert direct("cpu") - used - FOR_OTHERS == {"orbax-checkpoint"}


def test_an_import_under_a_condition_counts_and_one_in_a_function_does_not(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "import a\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\n"
        "else:\n    import c\ntry:\n    from d.e import f\nexcept ImportError:\n    import g\n"
        "class C:\n    import h\n    def m(self):\n        import i\n"
    )
    assert set(at_once(file)) == {"a", "typing", "c", "d.e", "g", "h"}


# --- without jax ----------------------------------------------------------------------------------


def hidden(*words: str) -> subprocess.CompletedProcess[str]:
    """The command `sax`, in a Python that finds no jax."""
    code = "import sys; sys.modules['jax'] = None; from sax.cli.__main__ import main; main()"
    return said(sys.executable, "-c", code, *words)


def said(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True
    )


def check_told(done: subprocess.CompletedProcess[str], who: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().endswith(
        f"{who} needs jax, which is not installed here: pip install '.[cpu]' in a clone of sax"
    )
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.extended
@pytest.mark.parametrize(
    "words",
    [
        *COMPUTING[:2],
        *(pytest.param(words, marks=pytest.mark.extended) for words in COMPUTING[2:]),
    ],
    ids=" ".join,
)
def test_a_command_that_computes_says_what_it_lacks(words: tuple[str, ...]) -> None:
    check_told(hidden(*words), f"`sax {words[0]}`")


AS_ON_WINDOWS = """
import asyncio, importlib, os, pkgutil, shutil, signal, socket, sys, tempfile

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in "resource fcntl termios tty pty pwd grp readline uvloop".split():
            raise ModuleNotFoundError(name)

for name in ("resource", "fcntl", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for module, names in {
    os: "fork getuid geteuid getgid getpgid setsid killpg sysconf sched_getaffinity mkfifo",
    signal: "SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD setitimer pthread_sigmask",
    socket: "SO_REUSEPORT",
}.items():
    for name in names.split():
        delattr(module, name)
import sax

# The entry point of the images, and what starts servers on this machine, are for POSIX alone.
for module in pkgutil.walk_packages(sax.__path__, "sax."):
    posix = module.name.startswith(("sax.container", "sax.cli.local"))
    if not posix and "__main__" not in module.name:
        importlib.import_module(module.name)
from sax.cli.main import app

for words in (["--help"], ["chat", "--help"], ["doctor"], ["status", "--admin", "127.0.0.1:9"]):
    try:
        app(words, prog_name="sax")
    except SystemExit as end:
        assert end.code in (0, 1), (words, end.code)
"""


def test_the_sdk_and_the_command_line_work_without_what_only_posix_has() -> None:
    done = said(sys.executable, "-c", AS_ON_WINDOWS)
    assert done.returncode == 0, done.stderr
    assert "Usage: sax [OPTIONS] COMMAND" in done.stdout
    assert "ok       memory: this system does not tell how much there is" in done.stdout
    assert "the admin server at 127.0.0.1:9 does not answer" in done.stderr


def test_a_model_server_says_what_it_lacks() -> None:
    code = "import sys; sys.modules['jax'] = None; from model_server.__main__ import main; main()"
    check_told(said(sys.executable, "-c", code), "`python -m model_server`")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with sax and its base dependencies."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # Not editable: what is installed must be whole by itself.
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", ROOT)
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_base_alone_has_no_jax_and_imports_whole(bare: Path) -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in of_rooms(CONTROL)
        if path.name not in {"__init__.py", "__main__.py"}
    ]
    code = f"""
import importlib, importlib.util, sys
for name in {modules!r}:
    importlib.import_module(name)
for name in ("jax", "jaxlib", "numpy", "lightkube"):
    assert importlib.util.find_spec(name) is None, name
"""
    done = outside(bare, "python", "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_base_alone_helps_and_says_what_it_lacks(bare: Path) -> None:
    for words in (
        ("sax", "--help"),
        ("python", "-m", "admin_server", "--help"),
        ("python", "-m", "http_gateway", "--help"),
        ("python", "-m", "model_server", "--help"),
    ):
        assert outside(bare, *words).returncode == 0
    for words in COMPUTING[:1]:
        check_told(outside(bare, "sax", *words), f"`sax {words[0]}`")
    check_told(outside(bare, "python", "-m", "model_server"), "`python -m model_server`")


def outside(bare: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run from a folder that holds no sources of ours."""
    return subprocess.run([bare / program, *words], cwd=bare, capture_output=True, text=True)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_base_alone_serves_a_cell_without_models(bare: Path, tmp_path: Path) -> None:
    port, status, http = free_ports(3)
    commands = (
        ("admin_server", f"--port={port}", f"--status_port={status}", f"--fs_root={tmp_path}"),
        ("http_gateway", f"--port={http}", f"--admin=127.0.0.1:{port}"),
    )
    servers = [subprocess.Popen([bare / "python", "-m", *each], cwd=bare) for each in commands]
    try:
        transport = httpx.HTTPTransport(retries=8)  # their start takes seconds
        with httpx.Client(transport=transport, trust_env=False, timeout=60) as client:
            assert client.get(f"http://127.0.0.1:{status}/healthz").status_code == 200
            cell = {"sax_cell": "/sax/test"}
            listed = client.post(f"http://127.0.0.1:{http}/listall", json=cell)
            assert listed.status_code == 200, listed.text
    finally:
        ends = _stopped(servers)
    assert ends == [0, 0]


def _stopped(servers: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    for each in servers:
        each.send_signal(signal.SIGTERM)
    return [each.wait(60) for each in servers]
