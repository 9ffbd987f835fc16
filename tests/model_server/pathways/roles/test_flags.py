from __future__ import annotations

import pytest

from model_server.pathways.roles.flags import PathwaysFlags, parse
from sax.errors import InvalidRequest
from tests.each_case import each_case
from tests.model_server.refusals import refusal


def parsed(line: str, **environ: str) -> PathwaysFlags:
    return parse(line.split(), environ)


TRUST = {"SAX_PATHWAYS_TRUST_NETWORK": "1"}


def test_the_flags_of_the_tutorial_and_the_controller_are_taken() -> None:
    manager = parsed(
        "--node_type=resource_manager --server_port=29001 --gcs_scratch_location=gs://b/tmp "
        "--instance_count=2 --instance_type=tpuv5e:4x8",
        **TRUST,
    )
    assert (manager.port, manager.instance_count) == (29001, 2)
    assert (manager.instance_type, manager.host) == ("tpuv5e:4x8", "0.0.0.0")
    proxy = parsed(
        "--server_port=29000 --resource_manager_address=head:29001 --node_type=proxy_server "
        "--gcs_scratch_location=gs://b/tmp --num_elastic_slices=1 --sidecar_name=external "
        "--virtual_slices=tpuv5e:4x8 --enable_metrics_collection=true",
        **TRUST,
    )
    assert (proxy.manager, proxy.elastic_islands) == ("head:29001", 1)
    unused = ["--virtual_slices", "--enable_metrics_collection"]
    assert (list(proxy.unused), list(manager.unused)) == (unused, [])
    assert (proxy.takes_functions, manager.takes_functions) == (True, False)
    worker = parsed(
        "--server_port=29005 --resource_manager_address=head:29001 --node_type=worker "
        "--gcs_scratch_location=gs://b/tmp",
        **TRUST,
        MEGASCALE_SLICE_ID="1",
        TPU_WORKER_ID="2",
        TPU_WORKER_HOSTNAMES="a,b,c,d",
        HOST_ADDRESS="worker-1-2",
    )
    assert (worker.island, worker.island_host, worker.island_hosts) == (1, 2, 4)
    assert worker.advertised == "worker-1-2"


TUTORIAL = "--resource_manager_address=head:29001 --gcs_scratch_location=gs://bucket"


@each_case(
    "role, line, variables",
    [
        ("worker", f"{TUTORIAL} --server_port=29001", {"MEGASCALE_SLICE_ID": "1"}),
        ("worker", f"{TUTORIAL} --server_port=29001", {"MEGASCALE_SLICE_ID": "0"}),
        ("worker", f"{TUTORIAL} --island=0", {}),
        ("proxy_server", f"{TUTORIAL} --server_port=29000", {"PATHWAYS_HEAD": "head"}),
        ("resource_manager", "--node_type=resource_manager", {"MEGASCALE_SLICE_ID": "1"}),
    ],
)
def test_the_tutorials_containers_are_known_without_a_node_type(
    role: str, line: str, variables: dict[str, str]
) -> None:
    flags = parsed(line, **TRUST, **variables)
    assert flags.role == role
    assert bool(flags.told_by) == ("node_type" not in line)


@each_case(
    "spelled",
    [
        "-node_type=sidecar -server_port=7 -colocated_python -notrust_network",
        "--node_type sidecar --server_port 7 --colocated_python=true --trust_network=false",
        "--node_type=sidecar --server_port=8 --server_port=7 --nocolocated_python "
        "--colocated_python --trust_network --notrust_network",
    ],
)
def test_flags_are_taken_in_abseils_spellings(spelled: str) -> None:
    flags = parsed(spelled, **TRUST)
    assert (flags.role, flags.port, flags.safety.trusted) == ("sidecar", 7, False)


def test_flags_of_xla_are_options_of_the_compiler() -> None:
    flags = parsed("--node_type=local --xla_a=true -xla_b=2 --xla_c --noxla_d --xla_e -1 --xla_f x")
    assert flags.compile_options == {
        "xla_a": "true", "xla_b": "2", "xla_c": "true", "xla_d": "false", "xla_e": "-1",
        "xla_f": "x",
    }  # fmt: skip


def test_the_head_of_a_deployment_is_found_by_its_variable() -> None:
    flags = parsed("--node_type=worker", PATHWAYS_HEAD="head.svc")
    assert flags.manager == "head.svc:29001"


PORTS = {"resource_manager": 29001, "proxy_server": 29000, "worker": 29005, "local": 29000}


def test_every_role_has_its_port() -> None:
    roles = {role: f"--node_type={role}" for role in PORTS}
    ports = {role: parsed(line, PATHWAYS_HEAD="head").port for role, line in roles.items()}
    assert ports == PORTS
    for line in roles.values():
        assert parsed(f"{line} --server_port=7", PATHWAYS_HEAD="head").port == 7, line


def test_nobody_serves_strangers_unasked() -> None:
    tls = "--tls_cert=a --tls_key=b --tls_ca=c"
    for role in PORTS:
        line = f"--node_type={role} --host=0.0.0.0"
        with pytest.raises(InvalidRequest, match="could run programs"):
            parsed(line, PATHWAYS_HEAD="head")
        assert parsed(f"{line} --trust_network", PATHWAYS_HEAD="head").host == "0.0.0.0", role
        assert parsed(f"--node_type={role}", PATHWAYS_HEAD="head").host == "127.0.0.1", role
        assert parsed(f"{line} {tls}", PATHWAYS_HEAD="head").safety.mutual, role


def test_wrong_flags_are_refused_in_words() -> None:
    said = {
        "--node_type=worker": "--resource_manager_address is missing",
        "--node_type=proxy_server": "--resource_manager_address is missing",
        "--node_type=worker --resource_manager_address=head": "is not an address",
        "--node_type=cook": "invalid choice",
        "": "--node_type is missing: say resource_manager, worker",
        "--node_type=local --nonode_type": "--nonode_type: no flag",
        "--node_type=local --trust_network=perhaps": "'perhaps'",
        "--node_type=local --no_such_flag=1": "--no_such_flag=1: no flag",
        "--node_type=resource_manager --instance_count=0": "use 1 or more",
        "--node_type=local --tls_cert=a": "go together",
        "--node_type=local --server_port=70000": "--server_port: '70000': use 0 to 65535",
        "--node_type=local --server_port=-1": "use 0 to 65535",
        "--node_type=resource_manager --status_port=99999": "--status_port: '99999'",
        "--node_type=resource_manager --lease_s=-1": "use seconds above 0",
        "--node_type=resource_manager --lease_s=nan": "use seconds above 0",
        "--node_type=local --num_elastic_slices=-1": "use 0 or more",
        "--node_type=local --memory_limit_bytes=-1": "use 0 or more",
        "--node_type=local --host_buffer_bytes=0": "use 1 or more",
        "--node_type=local --island=-1": "use 0 or more",
        "--node_type=local --island_hosts=0": "use 1 or more",
    }
    told = {line: refusal(parsed, line) for line in said}
    assert {each.kind for each in told.values()} == {InvalidRequest}
    assert {line: each for line, each in told.items() if said[line] not in each.text} == {}


def test_wrong_variables_are_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="MEGASCALE_SLICE_ID='x' is no number"):
        parsed("--node_type=worker", PATHWAYS_HEAD="head", MEGASCALE_SLICE_ID="x")


def test_a_sidecar_runs_code_only_where_it_was_asked_for() -> None:
    sidecar = parsed("--node_type=sidecar --colocated_python", **TRUST)
    assert (sidecar.port, sidecar.host) == (50051, "127.0.0.1")  # trust of a network is not enough
    with pytest.raises(InvalidRequest, match="say --colocated_python if they may"):
        parsed("--node_type=sidecar")
    with pytest.raises(InvalidRequest, match="--trust_network is not enough"):
        parsed("--node_type=sidecar --colocated_python --host=0.0.0.0 --trust_network")
    tls = "--tls_cert=c --tls_key=k --tls_ca=a"
    assert parsed(f"--node_type=sidecar --colocated_python {tls}").host == "0.0.0.0"


def test_a_worker_has_its_sidecar_on_its_machine_or_behind_certificates() -> None:
    head = "--node_type=worker --resource_manager_address=head:29001"
    assert not parsed(head).sidecar
    near = parsed(f"{head} --sidecar_address=127.0.0.1:50051")
    assert near.sidecar == "127.0.0.1:50051"
    with pytest.raises(InvalidRequest, match="is on the worker's machine"):
        parsed(f"{head} --sidecar_address=other:50051 --trust_network")
    tls = "--tls_cert=c --tls_key=k --tls_ca=a"
    assert parsed(f"{head} --sidecar_address=other:50051 {tls}").sidecar == "other:50051"


def test_workers_read_below_the_roots_that_they_are_given() -> None:
    head = "--node_type=worker --resource_manager_address=head:29001"
    assert parsed(head).checkpoint_roots == ()
    flags = parsed(f"{head} --checkpoint_root=/models --checkpoint_root=gs://bucket/models")
    assert flags.checkpoint_roots == ("/models", "gs://bucket/models")
    with pytest.raises(InvalidRequest, match="--checkpoint_root has models: give an absolute path"):
        parsed(f"{head} --checkpoint_root=models")
