"""Flags become one checked value, and a wrong one is refused in words; how a server is known and
ends.
"""

import os
import signal
import subprocess
import sys

import pytest

from model_server.config import ModelServerConfig, advertised_host, drained_status
from model_server.flags.command_line import make_config, make_parser
from sax.auth.security import Security
from sax.config import STRICT_VARIABLE
from sax.errors import InvalidName
from sax.flags.process_logs import ProcessLogs
from sax.host import machine_memory
from tests.demo_model import ROOT
from tests.each_case import each_case
from tests.end_to_end.cell import free_ports


def test_without_flags_the_defaults_of_the_config_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STRICT_VARIABLE)
    made, default = make_config([]), ModelServerConfig()
    for name in ModelServerConfig.__slots__:
        if name != "incarnation":
            assert getattr(made, name) == getattr(default, name), name


def test_every_flag_reaches_the_config() -> None:
    flags = (
        "--host 0.0.0.0 --port 0 --metrics_port -1 --sax_cell /sax/prod --admin h:1 "
        "--platform_chip tpuv5e --platform_topology 2x4 --tags a,b --model_filter_regex llama "
        "--jax_cache_dir /c --slots 2 --page_size 8 --max_context 64 --kv_cache_bytes 4096 "
        "--memory_limit_bytes 8192 --queue 3 --strict_compile --drain_seconds 1.5 "
        "--hosts a,b --host_ordinal 1 --group_port 9 --host_timeout_seconds 4 "
        "--bring_up_seconds 5 --cpu_devices 3 --prefill --prefill_servers c:1,d:2 "
        "--kv_expiry_seconds 6 --islands 0,2,3 --prefill_islands 3 --elastic_slices 1 "
        "--no-keep_programs"
    )
    made = make_config(flags.split())
    expected = ModelServerConfig(
        host="0.0.0.0",
        port=0,
        metrics_port=-1,
        sax_cell="/sax/prod",
        admin="h:1",
        platform_chip="tpuv5e",
        platform_topology="2x4",
        tags=("a", "b"),
        model_filter_regex="llama",
        jax_cache_dir="/c",
        slots=2,
        page_size=8,
        max_context=64,
        kv_cache_bytes=4096,
        memory_limit_bytes=8192,
        queue=3,
        strict_compile=True,
        drain_seconds=1.5,
        hosts="a,b",
        host_ordinal=1,
        group_port=9,
        host_timeout_seconds=4,
        bring_up_seconds=5,
        cpu_devices=3,
        prefill=True,
        prefill_servers=("c:1", "d:2"),
        kv_expiry_seconds=6,
        islands=(0, 2, 3),
        prefill_islands=(3,),
        elastic_slices=1,
        keep_programs=False,
        incarnation=made.incarnation,
    )
    assert made == expected


def test_prompts_are_computed_on_islands_of_the_server() -> None:
    with pytest.raises(ValueError, match="--prefill_islands names 4, which --islands does not"):
        ModelServerConfig(islands=(0, 2), prefill_islands=(2, 4))


def test_the_flags_are_the_fields_of_the_config() -> None:
    flags = set(vars(make_parser().parse_args([])))
    own = {"incarnation", "security", "token_variable", "logs", "static_models"}
    groups = {*Security.__slots__, *ProcessLogs.__slots__}
    lists = {"model_keys", "checkpoints", "model_config_overrides"}  # of the static models
    about_flags = {"flagfile", "undefok", "only_check_args"}
    assert flags == {*ModelServerConfig.__slots__, *groups, *lists, *about_flags} - own


def test_each_process_is_another_incarnation() -> None:
    assert ModelServerConfig().incarnation != ModelServerConfig().incarnation


def test_a_wrong_flag_ends_the_process_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        ("--slots 0", "--slots is 0: give a number above 0"),
        ("--max_context -1", "--max_context is -1"),
        ("--model_filter_regex (", "is not a regular expression"),
        ("--sax_cell test", "is not a cell"),
    ):
        with pytest.raises(SystemExit) as caught:
            make_config(flags.split())
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


def test_a_bad_cell_is_refused_by_the_config_itself() -> None:
    with pytest.raises(InvalidName):
        ModelServerConfig(sax_cell="/sax/Prod")


def test_a_server_without_a_cell_has_none() -> None:
    assert ModelServerConfig(sax_cell="").cell == ""
    assert ModelServerConfig(sax_cell="/sax/prod").cell == "prod"


def test_the_compile_cache_keeps_every_program() -> None:
    cached = ModelServerConfig(jax_cache_dir="/c").environment()
    assert cached["JAX_COMPILATION_CACHE_DIR"] == "/c"
    assert cached["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert "JAX_COMPILATION_CACHE_DIR" not in ModelServerConfig().environment()


def test_jax_never_takes_sigterm_from_us() -> None:
    assert ModelServerConfig().environment()["JAX_ENABLE_PREEMPTION_SERVICE"] == "false"


def test_the_memory_limit_is_the_machines_unless_told() -> None:
    assert ModelServerConfig().memory_limit == machine_memory()
    assert ModelServerConfig(memory_limit_bytes=7).memory_limit == 7


def test_a_checkpoint_root_is_a_folder_or_a_bucket() -> None:
    for root in ("models", "https://x/y", "gs://", "gs://b/../c", "az://b/c"):
        with pytest.raises(ValueError, match=r"--checkpoint_roots has .*: give"):
            ModelServerConfig(checkpoint_roots=("/models", "gs://b/c", root))
    assert ModelServerConfig(checkpoint_roots=("/models", "gs://b/c")).checkpoint_roots


def test_compiling_while_serving_is_an_error_wherever_the_variable_is_set() -> None:
    assert os.environ[STRICT_VARIABLE], "tests/conftest.py sets it for every process of a test"
    assert make_config([]).strict_compile
    assert not make_config(["--no-strict_compile"]).strict_compile


@each_case(
    "flags, ports",
    [
        ("", (10003, 0)),
        ("--port 10011", (10013, 0)),
        ("--port 0", (0,)),
        ("--port 65534", (0,)),
        ("--port 10011 --metrics_port 7", (7,)),
        ("--metrics_port 0", (0,)),
        ("--metrics_port -1", ()),
    ],
)
def test_the_port_of_metrics_follows_the_servers(flags: str, ports: tuple[int, ...]) -> None:
    assert make_config(flags.split()).metrics_ports == ports


@each_case("flags", ["--port 70000", "--port -1", "--metrics_port 70000", "--metrics_port -2",
                     "--group_port 0", "--group_port 65536"])  # fmt: skip
def test_what_is_no_port_is_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_config(flags.split())
    assert f"{flags.split()[0]} is {flags.split()[1]}: give a port" in capsys.readouterr().err


def test_what_somebody_told_comes_before_what_the_machine_knows() -> None:
    for host, told, known in (
        ("127.0.0.1", "", "127.0.0.1"),
        ("0.0.0.0", "10.4.0.7", "10.4.0.7"),
        ("127.0.0.1", "tpu-0.lab", "tpu-0.lab"),
        ("0.0.0.0", "fd00::7", "[fd00::7]"),
        ("0.0.0.0", "[fd00::7]", "[fd00::7]"),
    ):
        assert advertised_host(host, told) == known


def test_a_server_on_every_address_is_known_by_one_of_them() -> None:
    assert advertised_host("0.0.0.0") not in ("", "0.0.0.0")


def test_in_a_pod_of_a_job_a_drained_server_is_not_done() -> None:
    assert drained_status({}) == drained_status({"JOB_COMPLETION_INDEX": ""}) == 0
    assert drained_status({"JOB_COMPLETION_INDEX": "0"}) == 143


@pytest.mark.extended
@pytest.mark.parametrize(
    ("index", "status"), [pytest.param("", 0, marks=pytest.mark.nightly), ("3", 143)]
)
def test_the_process_ends_so(index: str, status: int) -> None:
    (port,) = free_ports(1)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JOB_COMPLETION_INDEX": index}
    server = subprocess.Popen(
        [sys.executable, "-m", "model_server", f"--port={port}", "--metrics_port=-1"]
        + ["--sax_cell="],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "listening on" in line:
            break
    server.send_signal(signal.SIGTERM)
    server.stderr.read()
    server.stderr.close()
    assert server.wait(60) == status


@pytest.mark.extended
@pytest.mark.parametrize(
    ("platform", "told"),
    [
        ("cuda", "jax has no devices here"),
        pytest.param("tpu", "jax has no devices here", marks=pytest.mark.nightly),
        ("proxy", "needs the address of a proxy server: set JAX_BACKEND_TARGET"),
    ],
)
def test_a_platform_that_jax_cannot_use_is_told_in_one_line(platform: str, told: str) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    environment.pop("JAX_BACKEND_TARGET", None)
    done = subprocess.run(
        [sys.executable, "-m", "model_server", "--port=0", "--metrics_port=-1", "--sax_cell="],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
