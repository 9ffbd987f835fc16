"""What is written within one pass of the event loop goes out in one piece, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from model_server.pathways.link.gathered_writer import GatheredWriter


class FakeTransport:
    """Remembers each write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def writelines(self, parts: Sequence[bytes]) -> None:
        assert not self.closing
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.closing = True

    abort = close


def writer() -> tuple[GatheredWriter, FakeTransport]:
    transport = FakeTransport()
    return GatheredWriter(cast(asyncio.Transport, transport)), transport


async def test_writes_of_one_pass_go_out_together_and_those_of_the_next_again() -> None:
    made, transport = writer()
    made.write([b"a", b"b"])
    made.write([b"c"])
    assert not transport.written
    await asyncio.sleep(0)
    made.write([b"d"])
    await asyncio.sleep(0)
    assert transport.written == [b"abc", b"d"]


async def test_much_goes_out_at_once_so_that_the_transport_can_ask_for_a_pause() -> None:
    made, transport = writer()
    made.write([b"a"])
    made.write([bytes(1 << 20)])
    assert transport.written == [b"a" + bytes(1 << 20)]
    await asyncio.sleep(0)
    assert len(transport.written) == 1


async def test_what_was_written_goes_out_before_the_end_and_nothing_after_it() -> None:
    for end in (GatheredWriter.close, GatheredWriter.abort):
        made, transport = writer()
        made.write([b"last"])
        end(made)
        made.write([b"too late"])
        await asyncio.sleep(0)
        assert transport.written == [b"last"]
        assert not made.open
