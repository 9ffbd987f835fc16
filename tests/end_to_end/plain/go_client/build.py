"""Builds the Go client of these tests, with stubs made from sax/proto.

Debian and Ubuntu package Go, its gRPC and its protobuf as sources. Everything is built from these,
protoc's plugins too, so nothing is fetched: `make golang` installs the packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.demo_model import ROOT

SOURCES = Path("/usr/share/gocode")  # where the packages lie
NEEDED = ("google.golang.org/grpc", "google.golang.org/protobuf", "github.com/golang/protobuf")
PLUGINS = {
    "protoc-gen-go": "google.golang.org/protobuf/cmd/protoc-gen-go",
    "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
}
PROTOS = ("common", "admin", "lm")
CLIENT = Path(__file__).parent / "client"
_PLACE = ROOT / ".cache" / "go"
_PROTOC = ROOT / ".cache" / "protoc" / "bin" / "python"  # made by `make proto`


def missing() -> str:
    """Name a tool or package that is not here; "" if all are."""
    if shutil.which("go") is None:
        return "Go"
    for each in NEEDED:
        if not (SOURCES / "src" / each).is_dir():
            return f"the source package of {each}"
    if not _PROTOC.exists() and shutil.which("protoc") is None:
        return "protoc"
    return ""


def build() -> Path:
    """Return the client's path. Raises CalledProcessError; what the compiler says is on stderr."""
    programs = _PLACE / "bin"
    for name, source in PLUGINS.items():
        _go("build", "-o", str(programs / name), source)
    _make_stubs(programs)
    client = programs / "client"
    _go("build", "-o", str(client), *map(str, sorted(CLIENT.glob("*.go"))))
    return client


def _make_stubs(programs: Path) -> None:
    """Write one Go package for each proto, `sax/proto/admin` for admin.proto."""
    folder = _PLACE / "src"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = [f"sax/proto/{name}.proto" for name in PROTOS]
    # The protos name no Go package: Saxml's build does not read it from them either.
    packages = [f"M{path}={path.removesuffix('.proto')}" for path in files]
    flags = [f"--plugin={programs / name}" for name in PLUGINS]
    for kind in ("go", "go-grpc"):
        flags += [f"--{kind}_out={folder}", *(f"--{kind}_opt={each}" for each in packages)]
    own = [str(_PROTOC), "-m", "grpc_tools.protoc"] if _PROTOC.exists() else ["protoc"]
    subprocess.run([*own, f"-I{ROOT}", *flags, *files], check=True, stdout=sys.stderr)


def _go(*words: str) -> None:
    environ = {
        **os.environ,
        "GO111MODULE": "off",  # packages of a distribution are found by GOPATH
        "GOPATH": f"{_PLACE}:{SOURCES}",
        "GOCACHE": str(_PLACE / "cache"),
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }
    subprocess.run(["go", *words], check=True, cwd=ROOT, env=environ, stdout=sys.stderr)
