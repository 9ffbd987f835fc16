"""OpenCode: a coding agent."""

import os
import subprocess
import tempfile
from pathlib import Path

_AGENT = os.environ["SAX_CLIENTS_OPENCODE"]  # a script that starts it as `sax launch` does
VERSION = subprocess.run([_AGENT, "--version"], capture_output=True, text=True).stdout.split()[0]


def turns() -> None:
    """`opencode run` as `sax launch opencode` starts it: 20 turns of its shell, a scripted model"""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        said = subprocess.run(
            [_AGENT, "run", "Do the turns."],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert "All turns are done." in said.stdout, (said.stdout, said.stderr)
        assert len(Path(folder, "turns.txt").read_text().split()) == 20
