"""Saxml's documented publish, by its own command line, served and warned of at every door."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import sax
from tests.end_to_end.cell import ADMIN, ROOT, Cell
from tests.end_to_end.small_model import PATH, WORDS

MODEL = "/sax/test/documented"
# docs/lm_decode_params.md of Saxml, with smaller lengths.
DOCUMENTED = (
    *("BATCH_SIZE=[1,4]", "NUM_SAMPLES=1", "BUCKET_KEYS=[16,32,64]", "TOP_K=1"),
    *("INPUT_SEQ_LEN=64", "MAX_DECODE_STEPS=[4,8]"),
    'EXTRA_INPUTS={"temperature":0,"per_example_max_decode_steps":6,"per_example_top_k":1,'
    '"per_example_top_p":0}',
)
OF_REPLIES = ("INCLUDE_PREFIX_IN_RESULT=true", "SCORING_INCLUDE_EOS_SCORE=true", "EOS_ID=7")
WARNING = (
    "BUCKET_KEYS has no effect here: prompts of any length run in chunks, so none is padded to a "
    "bucket"
)


def saxutil(cell: Cell, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sax.cli.saxutil", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SAX_ADMIN": cell.plan.admin_address},
    )


def test_a_line_of_saxmls_documentation_is_served_and_warned_of_at_every_door(
    cell: Cell, saxml_of: Callable[[Cell], None]
) -> None:
    words = (*WORDS, *DOCUMENTED, *OF_REPLIES)
    published = saxutil(cell, "publish", MODEL, PATH, "None", "1", *words)
    assert published.returncode == 0, published.stderr
    assert WARNING in published.stderr

    listed = cell.http.post("/listcell", json={"model": MODEL}).json()
    assert listed["warnings"] == [WARNING]
    assert f"warning: {WARNING}" in saxutil(cell, "ls", MODEL).stderr
    assert WARNING in cell.sax("ls", MODEL).stdout
    assert cell.listed(MODEL)["warnings"] == [WARNING]
    saxml_of(cell)
    assert sax.ListDetail(MODEL).warnings == (WARNING,)

    sax.WaitForReady(MODEL, 1, sax.AdminOptions(timeout=240))
    model = sax.Model(MODEL).LM()
    ((text, score),) = model.Generate("How many days?")
    assert text.startswith("How many days?")
    assert score <= 0
    assert model.Generate("How many days?") == [(text, score)], "temperature 0"
    one, both = (model.Score(prefix, [suffix])[0] for prefix, suffix in (("a", ""), ("a", "b")))
    assert both < one < 0, "an end token alone has a score"

    cell.kill(ADMIN)
    cell.start(ADMIN)
    cell.wait_until_up()
    again = cell.eventually(
        lambda: cell.http.post("/listcell", json={"model": MODEL}).json().get("warnings"),
        "the warning is there after a restart",
    )
    assert again == [WARNING]
    assert saxutil(cell, "unpublish", MODEL).returncode == 0


def test_what_cannot_be_is_refused_before_it_is_acknowledged(cell: Cell) -> None:
    name = "/sax/test/refused"
    for word, says in (
        ("BATCH_SIZE=[0]", "give a whole number of 1 or more"),
        ('EXTRA_INPUTS={"heat":1}', "heat is not supported"),
        ("NUM_LAYERZ=2", "did you mean NUM_LAYERS"),
        ("EOS_ID=512", "give token ids from 0 to 511"),
        ("SPM_MODEL=gs://bucket/a.model", "strings need double quotes"),
        ("BUCKET_KEYS=None", "write null"),
    ):
        refused = saxutil(cell, "publish", name, PATH, "None", "1", *WORDS, word)
        assert refused.returncode == 1, word
        assert says in refused.stderr, word
        reply = cell.http.post("/listcell", json={"model": name})
        assert reply.status_code == 404, json.dumps(reply.json())
