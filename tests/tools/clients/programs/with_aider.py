"""aider: a coding agent that edits files by what it reads in answers, and calls no tools."""

import os
import subprocess
import tempfile
from pathlib import Path

os.environ |= {
    "OPENAI_API_BASE": os.environ["SAX_CLIENTS_AGENT_URL"] + "/v1",
    "OPENAI_API_KEY": "none",
    "AIDER_ANALYTICS": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

from aider.coders import Coder
from aider.io import InputOutput
from aider.models import Model

PACKAGE = "aider-chat"


def turns() -> None:
    """`Coder.run` of whole files, whole and streamed: 20 turns of edits, a scripted model"""
    before = Path.cwd()
    for stream in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "init", "-q", folder], check=True)
            os.chdir(folder)
            try:
                _run(Path(folder, "turns.txt"), stream=stream)
            finally:
                os.chdir(before)


def _run(file: Path, *, stream: bool) -> None:
    file.touch()
    coder = Coder.create(
        main_model=Model(f"openai/{os.environ['SAX_CLIENTS_AGENT_MODEL']}"),
        edit_format="whole",
        io=InputOutput(yes=True, pretty=False, fancy_input=False),
        fnames=[str(file)],
        stream=stream,
        auto_commits=False,
    )
    for turn in range(20):
        coder.run(f"Write turn-{turn:03} into turns.txt.")
    assert file.read_text().split() == [f"turn-{turn:03}" for turn in range(20)], file.read_text()
