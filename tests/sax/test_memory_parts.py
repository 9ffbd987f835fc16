"""The plan of a server's memory as people read it."""

from hypothesis import given
from hypothesis import strategies as st

from sax.memory_parts import COLUMNS, MemoryParts, memory_rows, memory_table

MIB, GIB = 2**20, 2**30
SMALL = MemoryParts(weights=100 * MIB, kv=28 * MIB, slots=8, context=2048, tokens=8 * 2048)
LARGE = MemoryParts(weights=3 * GIB, kv=GIB, state=MIB, workspace=64 * MIB, slots=4, context=512)


def test_a_table_has_the_largest_model_first_and_what_is_free_last() -> None:
    table = memory_table([("/sax/test/small", SMALL), ("/sax/test/large", LARGE)], total=8 * GIB)
    heading, large, small, free = table.splitlines()
    assert heading.split("  ")[0] == "model"
    assert large.startswith(
        "/sax/test/large    3.0 GiB   1.0 GiB     1.0 MiB   64.0 MiB    4.1 GiB"
    )
    assert small.startswith("/sax/test/small  100.0 MiB  28.0 MiB         0 B        0 B  128.0")
    assert free.startswith("free")
    assert free.endswith("3.8 GiB  of 8.0 GiB")


def test_pages_for_fewer_tokens_than_every_slot_could_ask_for_are_told() -> None:
    (whole, _), (some, _) = (
        memory_rows([("m", SMALL)], total=GIB),
        memory_rows([("m", MemoryParts(weights=1, slots=4, context=512, tokens=600))], total=GIB),
    )
    assert whole[-1] == "8 x 2,048"
    assert some[-1] == "4 x 512, 600 tokens in all"


def test_a_model_without_slots_has_no_sequences() -> None:
    (row,) = memory_rows([("/sax/test/embedder", MemoryParts(weights=GIB))], total=0)
    assert row == ("/sax/test/embedder", "1.0 GiB", "0 B", "0 B", "0 B", "1.0 GiB", "")


sizes = st.integers(0, 2**45)


@given(st.lists(st.tuples(st.text("abc/", max_size=9), sizes, sizes), max_size=6), sizes)
def test_every_row_has_every_column(models: list[tuple[str, int, int]], total: int) -> None:
    parts = [(name, MemoryParts(weights=weights, kv=kv)) for name, weights, kv in models]
    rows = list(memory_rows(parts, total=total))
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert len(rows) == len(models) + bool(total)
    assert len(memory_table(parts, total=total).splitlines()) == len(rows) + 1
