"""A client that goes away mid-stream frees its slot and its pages."""

from __future__ import annotations

from tests.end_to_end.cell import SMOLLM2, Cell


def test_a_disconnect_mid_stream_frees_slot_and_pages_and_ends_the_work(served: Cell) -> None:
    served.eventually(lambda: _is_free(served), "what earlier tests asked has ended")
    cancelled = served.metric("sax_requests_cancelled_total")
    generated = served.metric("sax_generated_tokens_total")
    body = {
        "model": SMOLLM2,
        "prompt": "Once upon a time",
        "max_tokens": 1900,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    with served.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        events = response.iter_lines()
        for _ in range(6):
            next(events)
        assert served.metric("sax_slots_used") == 1
        assert served.metric("sax_pages_used") > 0
        response.close()
    served.eventually(lambda: _is_free(served), "slot and pages are free")
    served.eventually(
        lambda: served.metric("sax_requests_cancelled_total") == cancelled + 1, "it is counted"
    )
    stopped_at = served.metric("sax_generated_tokens_total")
    assert stopped_at - generated < 1900
    assert served.metric("sax_generated_tokens_total") == stopped_at


def _is_free(cell: Cell) -> bool:
    return cell.metric("sax_slots_used") + cell.metric("sax_pages_used") == 0
