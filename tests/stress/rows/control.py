"""Attacks on the control plane: its state folder, and the terms of its leaders."""

from __future__ import annotations

import shutil
import time

import httpx

from tests.end_to_end.cell import Cell
from tests.stress.row import row


@row("the state folder deleted under the running leader", fresh=True)
def deleted_state(cell: Cell) -> str:
    state = cell.plan.folder / "state"
    shutil.rmtree(state)
    began_s = time.monotonic()
    change = cell.sax("publish", "/sax/test/after", "llama", "None", "0")
    took_s = time.monotonic() - began_s
    assert change.returncode != 0, "a publish into a deleted folder was acknowledged"
    assert "deleted or replaced" in change.stderr, change.stderr
    assert took_s < 10, f"the refusal took {took_s:.1f} s"
    ready = httpx.get(f"http://127.0.0.1:{cell.plan.status_port}/readyz", trust_env=False)
    assert ready.status_code == 503, ready.text
    assert "deleted or replaced" in ready.json()["reason"]
    assert not state.exists(), "the folder was made again, empty"
    assert "/sax/test/smollm2" in cell.sax("ls", "/sax/test").stdout
    return "publish refused, /readyz 503 with the reason; generation goes on"
