"""aiperf: NVIDIA's benchmark of servers, as a command."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "aiperf"
_REQUESTS = 6


def _profile(*words: str) -> dict[str, object]:
    """Run a small benchmark; returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("aiperf")), "profile",
            "--model", os.environ["SAX_CLIENTS_MODEL"],
            "--url", os.environ["SAX_CLIENTS_URL"],
            "--tokenizer", os.environ["SAX_CLIENTS_TOKENIZER"],
            "--request-count", str(_REQUESTS), "--concurrency", "2",
            "--synthetic-input-tokens-mean", "32", "--output-tokens-mean", "8",
            "--extra-inputs", "ignore_eos:true", "--ui", "none",
            "--artifact-dir", folder, *words,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        (found,) = Path(folder).rglob("profile_export_aiperf.json")
        return json.loads(found.read_text())


def _check(figures: dict[str, object]) -> None:
    assert figures["request_count"]["avg"] == _REQUESTS, figures
    assert not figures.get("error_summary"), figures["error_summary"]


def chat() -> None:
    """`aiperf profile --endpoint-type chat --streaming`"""
    figures = _profile("--endpoint-type", "chat", "--streaming")
    _check(figures)
    assert figures["time_to_first_token"]["avg"] > 0


def completions() -> None:
    """`aiperf profile --endpoint-type completions`"""
    _check(_profile("--endpoint-type", "completions"))
