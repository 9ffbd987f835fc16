"""Saxml's documented publish, by its own command line, served and warned of at every door."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import sax
from tests.end_to_end.cell import ADMIN, ROOT, Cell, local_plan

pytestmark = [pytest.mark.timeout(600), pytest.mark.extended]

MODEL = "/sax/test/documented"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SMALL = (
    *("NUM_LAYERS=2", "MODEL_DIMS=64", "HIDDEN_DIMS=128", "NUM_HEADS=2"),
    *("DIMS_PER_HEAD=32", "VOCAB_SIZE=512"),
)
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


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    with Cell(local_plan(tmp_path_factory.mktemp("documented"))) as running:
        yield running


def saxutil(cell: Cell, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sax.cli.saxutil", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SAX_ADMIN": cell.plan.admin_address},
    )


def test_a_line_of_saxmls_documentation_is_served_and_warned_of_at_every_door(
    documented: Cell, saxml_of: Callable[[Cell], None]
) -> None:
    words = (*SMALL, *DOCUMENTED, *OF_REPLIES)
    published = saxutil(documented, "publish", MODEL, PATH, "None", "1", *words)
    assert published.returncode == 0, published.stderr
    assert WARNING in published.stderr

    listed = documented.http.post("/listcell", json={"model": MODEL}).json()
    assert listed["warnings"] == [WARNING]
    assert f"warning: {WARNING}" in saxutil(documented, "ls", MODEL).stderr
    assert WARNING in documented.sax("ls", MODEL).stdout
    assert documented.listed(MODEL)["warnings"] == [WARNING]
    saxml_of(documented)
    assert sax.ListDetail(MODEL).warnings == (WARNING,)

    sax.WaitForReady(MODEL, 1, sax.AdminOptions(timeout=240))
    model = sax.Model(MODEL).LM()
    ((text, score),) = model.Generate("How many days?")
    assert text.startswith("How many days?")
    assert score <= 0
    assert model.Generate("How many days?") == [(text, score)], "temperature 0"
    one, both = (model.Score(prefix, [suffix])[0] for prefix, suffix in (("a", ""), ("a", "b")))
    assert both < one < 0, "an end token alone has a score"

    documented.kill(ADMIN)
    documented.start(ADMIN)
    documented.wait_until_up()
    again = documented.eventually(
        lambda: documented.http.post("/listcell", json={"model": MODEL}).json().get("warnings"),
        "the warning is there after a restart",
    )
    assert again == [WARNING]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("BATCH_SIZE=[0]", "give a whole number of 1 or more"),
        ('EXTRA_INPUTS={"heat":1}', "heat is not supported"),
        ("NUM_LAYERZ=2", "did you mean NUM_LAYERS"),
        ("EOS_ID=512", "give token ids from 0 to 511"),
        ("SPM_MODEL=gs://bucket/a.model", "strings need double quotes"),
        ("BUCKET_KEYS=None", "write null"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_acknowledged(
    documented: Cell, word: str, says: str
) -> None:
    name = "/sax/test/refused"
    refused = saxutil(documented, "publish", name, PATH, "None", "1", *SMALL, word)
    assert refused.returncode == 1
    assert says in refused.stderr
    reply = documented.http.post("/listcell", json={"model": name})
    assert reply.status_code == 404, json.dumps(reply.json())
