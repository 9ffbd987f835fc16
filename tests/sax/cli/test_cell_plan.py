"""What a local cell consists of."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sax.cli.cell_plan import (
    ADMIN,
    GATEWAY,
    MODEL_SERVER,
    CellPlan,
    Port,
    check_ports,
    default_compile_cache,
)
from sax.errors import InvalidName, InvalidRequest


def plan(**changes: object) -> CellPlan:
    values: dict[str, object] = {"folder": Path("/f"), "compile_cache": Path("/c"), **changes}
    return CellPlan(**values)  # type: ignore[arg-type]


def test_the_children_start_in_the_order_admin_model_server_gateway() -> None:
    assert [child.name for child in plan().children] == [ADMIN, MODEL_SERVER, GATEWAY]


def test_every_child_is_told_the_same_cell_and_admin() -> None:
    admin, model_server, gateway = plan(admin_port=1234, cell="/sax/lab").children
    assert "--port=1234" in admin.flags
    assert "--sax_cell=/sax/lab" in admin.flags
    assert "--sax_cell=/sax/lab" in model_server.flags
    assert "--admin=127.0.0.1:1234" in model_server.flags
    assert "--admin=127.0.0.1:1234" in gateway.flags


def test_flags_for_the_model_server_come_last_so_that_they_win() -> None:
    model_server = plan(model_server_flags=("--slots", "4")).children[1]
    assert model_server.flags[-2:] == ("--slots", "4")


def test_the_users_modules_are_imported_by_the_model_server_alone() -> None:
    admin, model_server, gateway = plan(imports=("mine", "mine.too")).children
    assert [f for f in model_server.flags if "import" in f] == [
        "--import=mine",
        "--import=mine.too",
    ]
    assert not any("import" in flag for flag in (*admin.flags, *gateway.flags))


def test_two_processes_on_one_port_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="differ"):
        plan(admin_port=8888)


def test_a_malformed_cell_is_refused() -> None:
    with pytest.raises(InvalidName, match="/sax/<cell>"):
        plan(cell="test")


def test_a_gateway_that_serves_every_interface_is_found_on_this_one() -> None:
    assert plan(host="0.0.0.0").gateway_url == "http://127.0.0.1:8888"
    assert plan(host="127.0.0.2").gateway_url == "http://127.0.0.2:8888"


def test_a_taken_port_is_named_with_the_flag_that_moves_it() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        number = holder.getsockname()[1]
        with pytest.raises(InvalidRequest, match=rf"port {number} \(gateway\).*--port"):
            check_ports((Port(number, GATEWAY, "--port", "127.0.0.1"),))
    check_ports((Port(number, GATEWAY, "--port", "127.0.0.1"),))


def test_the_compile_cache_follows_the_users_cache_folder() -> None:
    assert default_compile_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/sax/compiled")
    assert default_compile_cache({}) == Path.home() / ".cache" / "sax" / "compiled"
