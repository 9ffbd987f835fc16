"""StartDebugPort."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

import sax
from sax.errors import InvalidRequest

PROGRAM = """
import sys, urllib.request
import sax
sax.StartDebugPort(int(sys.argv[1]))
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics") as page:
    print("python_info" in page.read().decode())
"""


def test_a_process_shows_its_metrics() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", PROGRAM, str(port)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=str(port)):
            sax.StartDebugPort(port)
