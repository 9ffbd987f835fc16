"""What a local cell consists of."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from model_server.flags.command_line import make_config
from model_server.multihost.membership import membership
from model_server.pathways.roles.flags import parse
from sax.cli.local.cell_plan import ADMIN, GATEWAY, CellPlan, check_ports, default_compile_cache
from sax.cli.local.child import Child, Port
from sax.cli.local.server_plan import MODEL_SERVER
from sax.errors import InvalidName, InvalidRequest
from tests.each_case import each_case


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
    with pytest.raises(InvalidRequest, match="port [0-9]+ is used twice"):
        plan(admin_port=8888)


def test_one_server_on_one_host_is_told_nothing_of_hosts(tmp_path: Path) -> None:
    server = plan(folder=tmp_path, memory=1 << 30).children[1]
    assert (server.name, server.gang) == (MODEL_SERVER, "")
    assert server.log == tmp_path / "logs" / "model_server.log"
    told = ("--hosts", "--host_ordinal", "--group_port", "--cpu_devices", "--memory_limit_bytes")
    assert [flag for flag in server.flags if flag.startswith(told)] == []


def gang(**changes: object) -> list[Child]:
    return [child for child in plan(**changes).children if child.module == "model_server"]


def test_the_hosts_of_a_server_are_one_gang_of_which_the_primary_shows_metrics() -> None:
    hosts = gang(hosts=3, devices_per_host=2, model_server_flags=("--slots=4",))
    assert [host.name for host in hosts] == [f"model server host {i}" for i in range(3)]
    assert {host.gang for host in hosts} == {MODEL_SERVER}
    for ordinal, host in enumerate(hosts):
        assert "--hosts=127.0.0.1,127.0.0.1,127.0.0.1" in host.flags
        assert f"--host_ordinal={ordinal}" in host.flags
        assert "--group_port=10101" in host.flags
        assert "--cpu_devices=2" in host.flags
        assert f"--metrics_port={-1 if ordinal else 10003}" in host.flags
        assert host.flags[-1] == "--slots=4"
        assert host.log == Path(f"/f/logs/model_server-0-host-{ordinal}.log")


def test_all_model_server_processes_share_the_memory_of_the_machine() -> None:
    for host in gang(hosts=4, servers=2, memory=80):
        assert "--memory_limit_bytes=10" in host.flags
    ours, theirs = gang(hosts=2, memory=80, model_server_flags=("--memory_limit_bytes=7",))
    for host in (ours, theirs):  # argparse takes the last
        limits = [flag for flag in host.flags if flag.startswith("--memory_limit_bytes")]
        assert limits == ["--memory_limit_bytes=40", "--memory_limit_bytes=7"]


def test_the_model_server_understands_what_its_hosts_are_told() -> None:
    told = [make_config(host.flags) for host in gang(hosts=2, devices_per_host=2, memory=80)]
    assert [config.host_ordinal for config in told] == [0, 1]
    members = [membership(each.hosts, each.host_ordinal, {}, "here") for each in told]
    assert [(member.count, member.primary) for member in members] == [(2, "127.0.0.1")] * 2
    assert {config.memory_limit for config in told} == {40}


def test_further_servers_have_ports_and_logs_of_their_own() -> None:
    first, second = gang(servers=2)
    assert (first.name, second.name) == ("model server 0", "model server 1")
    assert (first.gang, second.gang) == ("", "")
    assert "--port=10001" in first.flags
    assert {"--port=10011", "--metrics_port=10013"} < set(second.flags)
    assert second.log == Path("/f/logs/model_server-1-host-0.log")


@pytest.mark.parametrize("hosts", [1, 4])
def test_the_default_ports_of_ten_servers_do_not_meet(hosts: int) -> None:
    ports = [port.number for port in plan(servers=10, hosts=hosts).ports]
    assert len(set(ports)) == len(ports)


def test_a_port_that_meets_another_is_named_with_both_flags() -> None:
    with pytest.raises(InvalidRequest, match=r"10011.*--status-port.*model server 1.*--model-port"):
        plan(servers=2, status_port=10011)


@each_case(
    "changes, flag",
    [
        ({"hosts": 0}, "--hosts"),
        ({"servers": -1}, "--servers"),
        ({"devices_per_host": 0}, "--devices-per-host"),
        ({"servers": 2, "model_port": 65530}, "--model-port"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_flag(
    changes: dict[str, object], flag: str
) -> None:
    with pytest.raises(InvalidRequest, match=flag) as refused:
        plan(**changes)
    assert refused.value.param == flag


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


def test_model_servers_of_a_cell_with_islands_compute_through_its_proxy_server() -> None:
    made = plan(islands=2, devices_per_island=4, memory=100, pathways_port=700)
    admin, manager, *workers, proxy, server, gateway = made.children
    assert [each.name for each in workers] == ["worker of island 0", "worker of island 1"]
    assert dict(server.environ) == {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": "grpc://127.0.0.1:700",
    }
    assert not any("memory_limit" in flag for flag in server.flags)
    assert "JAX_PLATFORMS" not in {name for each in (admin, gateway) for name, _ in each.environ}
    flags = [parse(each.flags, {}) for each in (manager, *workers, proxy)]
    assert [each.role for each in flags] == ["resource_manager", "worker", "worker", "proxy_server"]
    assert (flags[0].instance_type, flags[0].instance_count) == ("cpu:4", 2)
    assert flags[0].lease_s > parse(["--node_type=local"], {}).lease_s
    assert [each.island for each in flags[1:3]] == [0, 1]
    assert {each.manager for each in flags[1:]} == {f"127.0.0.1:{flags[0].port}"}
    assert {each.memory_limit_bytes for each in flags[1:3]} == {50}
    assert [each.number for each in made.ports if each.flag == "--pathways-port"] == [
        700, 701, 702, 705, 706,
    ]  # fmt: skip


@pytest.mark.parametrize("with_it", [{"hosts": 2}, {"devices_per_host": 2}])
def test_islands_and_hosts_of_a_server_exclude_each_other(with_it: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="use --devices-per-island"):
        plan(islands=2, **with_it)


@pytest.mark.parametrize(
    ("flags", "roots"),
    [
        ((), ["/"]),  # a model server without roots reads any place
        (("--checkpoint_roots=/a,gs://b/c", "--slots=2"), ["/a", "gs://b/c"]),
        (("--checkpoint_roots=/z", "--checkpoint_roots", "/a"), ["/a"]),
    ],
)
def test_islands_read_checkpoints_where_the_model_server_may(
    flags: tuple[str, ...], roots: list[str]
) -> None:
    islands = plan(islands=1, model_server_flags=flags).island_plan
    assert islands is not None
    worker = next(each for each in islands.children if each.name == "worker of island 0")
    found = [each for each in worker.flags if each.startswith("--checkpoint_root=")]
    assert found == [f"--checkpoint_root={root}" for root in roots]


@pytest.mark.parametrize("wrong", [{"islands": -1}, {"islands": 1, "devices_per_island": 0}])
def test_no_islands_and_no_devices_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="must be above 0"):
        plan(**wrong)


def test_flags_of_the_gateway_reach_it_alone_and_after_the_plans_own() -> None:
    flags = ("--lenient", "--cors_origins=*", "--max_body_bytes=8")
    *others, gateway = plan(gateway_flags=flags).children
    assert gateway.flags[-3:] == flags
    assert not any("--lenient" in child.flags for child in others)


def test_a_gateway_with_a_certificate_is_called_by_https() -> None:
    assert plan().gateway_url.startswith("http://")
    assert plan(gateway_flags=("--tls_cert=c.pem",)).gateway_url.startswith("https://")
