"""The entry point of the images: which flags and variables a server gets."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_server.__main__ import parse
from sax.container import ROLES, USAGE, command
from sax.errors import InvalidRequest
from tests.each_case import each_case

ROOT = Path(__file__).parents[2]


def made(role: str, *flags: str, **environ: str) -> list[str]:
    """The flags behind `python -m ROLE`."""
    argv, _ = command(role, flags, environ)
    assert argv[:2] == ["-m", role]
    return argv[2:]


def entry(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The entry point as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sax.container", *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_bucket_makes_both_roots_of_the_admin() -> None:
    assert made("admin_server", GSBUCKET="b") == [
        "--host=0.0.0.0",
        "--sax_cell=/sax/test",
        "--sax_root=gs://b/sax-root",
        "--fs_root=gs://b/sax-fs-root",
    ]


@each_case(
    "environ, place",
    [
        ({"GSBUCKET": "b"}, "gs://b"),
        ({"GSBUCKET": "b/"}, "gs://b"),
        ({"SAX_GCS_BUCKET": "b"}, "gs://b"),
        ({"GSBUCKET": "b", "SAX_GCS_BUCKET": "b"}, "gs://b"),
        ({"GSBUCKET": "s3://b/folder"}, "s3://b/folder"),
        ({"SAX_DIR": "/data"}, "/data"),
        ({"SAX_DIR": "/data/", "GSBUCKET": ""}, "/data"),
        ({"SAX_DIR": "/"}, ""),
        ({"GSBUCKET": "b", "SAX_REPLICA_NAME": "gem-1"}, "gs://b/gem-1"),
        ({"SAX_DIR": "/data", "SAX_REPLICA_NAME": "gem-1"}, "/data/gem-1"),
    ],
)
def test_a_place_is_a_bucket_a_url_or_a_folder(environ: dict[str, str], place: str) -> None:
    assert made("admin_server", **environ)[-2:] == [
        f"--sax_root={place}/sax-root",
        f"--fs_root={place}/sax-fs-root",
    ]


def test_roots_that_are_named_win_over_those_of_the_place() -> None:
    flags = made("admin_server", GSBUCKET="b", SAX_ROOT="/root", FS_ROOT="s3://c/state")
    assert flags[-2:] == ["--sax_root=/root", "--fs_root=s3://c/state"]


def test_an_admin_whose_state_is_placed_by_a_flag_needs_no_variable() -> None:
    assert made("admin_server", "--fs_root=/data")[-1] == "--fs_root=/data"
    assert made("admin_server", "--fs_root", "/data")[-2:] == ["--fs_root", "/data"]


def test_the_flags_that_are_given_come_last_and_win() -> None:
    flags = made("admin_server", "--host=127.0.0.1", "--port=7", GSBUCKET="b", PORT="9000")
    config = parse(flags)
    assert (config.host, config.port, config.fs_root) == ("127.0.0.1", 7, "gs://b/sax-fs-root")


def test_the_tutorials_model_server_gets_its_arguments_as_they_are() -> None:
    given = ("--port=10001", "--sax_cell=/sax/test", "--platform_chip=tpuv5e")
    environ = {"GSBUCKET": "b", "POD_IP": "10.0.0.7"}
    argv, after = command("model_server", given, environ)
    assert argv == [
        "-m",
        "model_server",
        "--host=0.0.0.0",
        "--sax_cell=/sax/test",
        "--advertise=10.0.0.7",
        *given,
    ]
    assert after == {**environ, "SAX_ROOT": "gs://b/sax-root"}


def test_a_gateway_serves_every_cell_and_announces_itself_nowhere() -> None:
    flags = made("http_gateway", GSBUCKET="b", POD_IP="10.0.0.7", SAX_CELL="/sax/x", PORT="80")
    assert flags == ["--host=0.0.0.0", "--port=80", "--files=gs://b/sax-files"]


def test_a_gateway_keeps_files_in_the_cells_storage_elsewhere_or_nowhere() -> None:
    assert "--files=/data/sax-files" in made("http_gateway", SAX_DIR="/data")
    assert "--files=s3://c/d" in made("http_gateway", GSBUCKET="b", SAX_FILES="s3://c/d")
    assert made("http_gateway", GSBUCKET="b", SAX_FILES="") == ["--host=0.0.0.0"]
    assert made("http_gateway", "--files=/x", GSBUCKET="b") == ["--host=0.0.0.0", "--files=/x"]
    assert made("http_gateway", SAX_ADMIN="admin:10000") == ["--host=0.0.0.0"]


@pytest.mark.parametrize("role", ["model_server", "http_gateway"])
def test_who_is_told_of_the_admin_looks_for_it_nowhere(role: str) -> None:
    environ = {"GSBUCKET": "BUCKET_NAME", "SAX_ADMIN": "admin:10000"}
    assert command(role, (), environ)[1] == environ


def test_the_page_names_every_variable_of_the_help() -> None:
    helped = re.findall(r"^  ([A-Z][A-Z_]+) ", USAGE, re.MULTILINE)
    page = (ROOT / "docs" / "how_to" / "images.md").read_text()
    named = re.findall(r"`([A-Z][A-Z_]+)`", page.partition("| variable |")[2])
    assert "SAX_FILES" in helped
    assert {*helped} <= {*named}


def test_an_empty_variable_is_not_set_and_stays_as_it_is() -> None:
    """The tutorial's MEGASCALE_NUM_SLICES="" takes back what GKE sets."""
    environ = {"MEGASCALE_NUM_SLICES": "", "PORT": "", "SAX_CELL": "", "POD_IP": ""}
    argv, after = command("model_server", (), environ)
    assert argv == ["-m", "model_server", "--host=0.0.0.0", "--sax_cell=/sax/test"]
    assert after == environ


@each_case(
    "role, environ, words",
    [
        ("server", {}, "'server' is not a role: use one of admin_server, model_server"),
        ("admin_server", {}, "nowhere to keep its state"),
        ("admin_server", {"SAX_ROOT": "/x"}, "nowhere to keep its state"),
        ("admin_server", {"GSBUCKET": "b", "SAX_DIR": "/d"}, "several places for one cell"),
        ("http_gateway", {"GSBUCKET": "b", "SAX_DIR": "/d"}, "several places for one cell"),
        ("admin_server", {"GSBUCKET": "b", "SAX_GCS_BUCKET": "c"}, "several places for one cell"),
        ("model_server", {"GSBUCKET": "BUCKET_NAME"}, "replace BUCKET_NAME with your bucket name"),
        ("admin_server", {"GSBUCKET": "BUCKET_NAME"}, "replace BUCKET_NAME with your bucket name"),
        ("http_gateway", {"SAX_ROOT": "gs://BUCKET_NAME/sax-root"}, "holds a placeholder"),
        ("http_gateway", {"PORT": "http"}, "PORT='http' is not a port"),
        ("http_gateway", {"PORT": "tcp://10.0.0.1:80"}, "is not a port"),
        ("http_gateway", {"PORT": "65536"}, "is not a port"),
        ("http_gateway", {"PORT": "٣"}, "is not a port"),
    ],
)
def test_what_cannot_be_is_refused_in_words(role: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("'", ".")):
        command(role, (), environ)


@pytest.mark.parametrize("kind", ["resource_manager", "worker", "proxy_server"])
def test_a_model_servers_image_becomes_the_pathways_program_that_its_flags_name(kind: str) -> None:
    """A PathwaysJob gives a component flags and no command; variables of servers say nothing."""
    flags, environ = (f"--node_type={kind}", "--server_port=29005"), {"PORT": "x", "SAX_CELL": ""}
    for role in ("model_server", "pathways"):
        argv, after = command(role, flags, environ)
        assert argv == ["-m", "model_server.pathways", *flags]
        assert after == environ
    assert command("model_server", ("--node_type", kind), {})[0][1] == "model_server.pathways"
    assert command("model_server", ("--node_types=worker",), {})[0][1] == "model_server"


def test_it_becomes_a_program_of_the_tutorial_which_names_no_node_type() -> None:
    flags = ("--server_port=29005", "--resource_manager_address=head:29001")
    assert command("model_server", flags, {})[0] == ["-m", "model_server.pathways", *flags]


@given(
    st.sampled_from([*ROLES, "pathways"]),
    st.lists(st.text(min_size=1), max_size=3),
    st.dictionaries(
        st.sampled_from(["SAX_CELL", "PORT", "GSBUCKET", "SAX_DIR", "SAX_ROOT", "FS_ROOT", "HOME"]),
        st.text(max_size=5),
    ),
)
def test_nothing_that_was_there_changes(
    role: str, flags: list[str], environ: Mapping[str, str]
) -> None:
    try:
        argv, after = command(role, flags, environ)
    except InvalidRequest:
        return
    assert argv[len(argv) - len(flags) :] == flags
    assert {name: after[name] for name in environ if environ[name]} == {
        name: value for name, value in environ.items() if value
    }
    assert set(after) - set(environ) <= {"SAX_ROOT"}


def test_alone_it_teaches() -> None:
    done = entry()
    assert done.returncode == 2
    assert "GSBUCKET=my-bucket python -m sax.container admin_server" in done.stderr


def test_help_is_no_failure() -> None:
    done = entry("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m sax.container ROLE")


def test_a_refusal_is_one_line_and_status_2() -> None:
    done = entry("http_gateway", PORT="x")
    assert done.returncode == 2
    assert done.stderr == "sax.container: PORT='x' is not a port: use a number up to 65535\n"


@pytest.mark.extended
@pytest.mark.parametrize("role", ROLES)
def test_it_becomes_the_server_that_it_was_asked_for(role: str) -> None:
    done = entry(role, "--help", SAX_DIR="/nowhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert role in done.stdout


def test_it_loads_nothing_that_takes_time() -> None:
    code = "import sys, sax.container; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not {"grpc", "typer", "google", "asyncio", "msgspec"} & set(done.stdout.split())


def test_the_memory_that_may_be_locked_is_all_that_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    code = (
        "import resource; from sax.container import raise_memory_lock; "
        "told = raise_memory_lock(); soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK); "
        "print(soft == hard, (told is None) == (soft == resource.RLIM_INFINITY))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True True\n"
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up what it may do")
def test_without_the_right_to_more_it_says_what_is_missing() -> None:
    code = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)); "
        "os.setuid(65534); from sax.container import raise_memory_lock; print(raise_memory_lock())"
    )
    # Imported before: another user may not be able to read this folder.
    done = subprocess.run(
        [sys.executable, "-c", f"import sax.container; {code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("at most 64 KiB of memory can be locked here; TPU v6e")


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads limits in /proc")
def test_a_model_server_may_lock_all_the_memory_that_it_is_allowed_to() -> None:
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]

    def locked(pid: int) -> str:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return next(line for line in lines if line.startswith("Max locked memory")).split()[3]

    server = subprocess.Popen(
        ["sh", "-c", 'ulimit -S -l 64; exec "$@"', "sh", sys.executable, "-m", "sax.container"]
        + ["model_server", "--port=0", "--metrics_port=-1", "--sax_cell="],
        env={"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    with server.stderr:
        assert any("listening on" in line for line in server.stderr)
        soft = locked(server.pid)
        server.terminate()
        server.stderr.read()
    assert server.wait(60) == 0
    allowed = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    assert soft in (allowed, "unlimited")
    assert soft != str(64 * 1024) or hard == 64 * 1024
