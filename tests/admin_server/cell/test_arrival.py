"""A model server is asked at its address before it is believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sax.auth.token_file import new_token, token_line
from sax.errors import InvalidRequest, Unavailable


async def test_an_address_where_nobody_answers_is_not_joined(admin, start_modelet):
    there = await start_modelet()
    elsewhere = replace(there.info, address="127.0.0.1:9", incarnation="b" * 32)
    with pytest.raises(Unavailable, match="--advertise") as caught:
        await admin.cell.admit(elsewhere)
    assert caught.value.param == "address"
    assert [info.address for info in admin.cell.infos()] == [there.address]


async def test_the_address_of_another_server_is_refused(admin, start_modelet):
    there = await start_modelet()
    with pytest.raises(InvalidRequest, match="another model server"):
        await admin.cell.admit(replace(there.info, incarnation="b" * 32))
    assert [info.incarnation for info in admin.cell.infos()] == [there.incarnation]


async def test_a_restart_is_believed_before_the_connection_is_there_again(admin, start_modelet):
    there = await start_modelet()
    await there.stop()
    await admin.cell.admit(there.info)
    assert [info.incarnation for info in admin.cell.infos()] == [there.incarnation]
    await there.start()


async def test_a_heartbeat_is_taken_without_another_look(admin, start_modelet):
    there = await start_modelet()
    await there.cut_off()
    await admin.cell.admit(there.info)
    assert [info.address for info in admin.cell.infos()] == [there.address]
    await there.start()


async def test_a_server_that_refuses_to_talk_to_this_admin_server_is_there(
    admin, start_modelet, tmp_path: Path
):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("somebody", new_token()) + "\n")
    there = await start_modelet(tokens=tokens)
    assert [info.address for info in admin.cell.infos()] == [there.address]
