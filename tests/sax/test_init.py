"""What an import costs."""

from __future__ import annotations

import subprocess
import sys

from tests.each_case import each_case

HEAVY = ("grpc", "google.protobuf", "fastapi", "jax", "numpy")


@each_case("module", ["sax", "sax.names", "sax.errors", "sax.types"])
def test_the_values_load_without_grpc(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_client_loads_neither_jax_nor_a_web_framework() -> None:
    code = "import sys, sax; sax.Client; sax.Publish; print({'jax', 'fastapi'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
