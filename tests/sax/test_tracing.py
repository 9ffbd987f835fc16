"""`traceparent`, as W3C's trace context has it."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sax import tracing
from sax.auth.credentials import call_metadata
from sax.tracing import TraceContext
from tests.each_case import each_case

ID, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_again(trace_id: int, span_id: int, sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, sampled)
    assert TraceContext.parse(str(context)) == context


@each_case(
    "written, sampled",
    [
        (f"00-{ID}-{SPAN}-01", True),
        (f"00-{ID}-{SPAN}-00", False),
        (f"00-{ID}-{SPAN}-03", True),  # a flag that we do not know
        (f"01-{ID}-{SPAN}-01-more", True),  # a later version
    ],
)
def test_a_header_names_trace_span_and_whether_it_is_recorded(written: str, sampled: bool) -> None:
    assert TraceContext.parse(written) == TraceContext(int(ID, 16), int(SPAN, 16), sampled)


@each_case(
    "written",
    [
        "",
        "nonsense",
        f"00-{ID}-{SPAN}",
        f"00-{ID}-{SPAN}-01-more",
        f"ff-{ID}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{ID}-{'0' * 16}-01",
        f"00-{ID.upper()}-{SPAN}-01",
        f"00-{ID}-{SPAN}-01\n",
        "0" * 10_000,
    ],
)
def test_anything_else_is_as_if_it_were_not_there(written: str) -> None:
    assert TraceContext.parse(written) is None


def test_a_child_is_another_span_of_the_same_trace() -> None:
    root = TraceContext.root(sampled=False)
    child = root.child()
    assert (child.trace_id, child.sampled) == (root.trace_id, False)
    assert child.span_id not in (0, root.span_id)


async def test_calls_of_a_task_and_of_its_tasks_name_its_span_and_no_others_do() -> None:
    async def traced(span: str) -> tuple[tuple[str, str], ...]:
        tracing.enter(span)
        return await asyncio.create_task(asyncio.sleep(0, call_metadata()))

    one, two = await asyncio.gather(traced(f"00-{ID}-{SPAN}-01"), traced(""))
    assert dict(one)[tracing.TRACEPARENT] == f"00-{ID}-{SPAN}-01"
    assert tracing.TRACEPARENT not in dict(two)
    assert tracing.current() == ""
