"""schemathesis: asks every route of the OpenAPI document of its own making, as a command.

Routes that would take the model away from other clients are asked in
tests/http_gateway/test_contract.py, in process. What is asked for may be refused for reasons that
no schema says, so that check is left out.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "schemathesis"
_CHANGES = "^/(publish|update|unpublish|rollback|canary|promote|abort)$"
# It does not count 413 among refusals, and makes bodies larger than a gateway takes.
_REFUSALS = ("400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429", "5xx")
_CONFIG = f"[checks]\nnegative_data_rejection.expected-statuses = {[*_REFUSALS]}\n"


def _run(*words: str) -> None:
    command = [
        str(Path(sys.executable).with_name("st")), "run",
        f"{os.environ['SAX_CLIENTS_URL']}/openapi.json",
        "--exclude-path-regex", _CHANGES, "--exclude-checks", "positive_data_acceptance",
        "--seed", "1", "--generation-database", "none", "--request-timeout", "60", *words,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # it keeps cases to replay where it runs
        Path(folder, "schemathesis.toml").write_text(_CONFIG)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def coverage() -> None:
    """`st run --phases coverage`: every bound of every field of every route"""
    _run("--phases", "coverage")


def fuzzing() -> None:
    """`st run --phases fuzzing`: random requests, right and wrong"""
    _run("--phases", "fuzzing", "--max-examples", "3")
