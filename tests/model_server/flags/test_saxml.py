"""The flags of Saxml's model server reach the config and the environment of jax."""

from __future__ import annotations

import shlex

import pytest

from model_server.config import ModelServerConfig
from model_server.flags import make_config, make_parser
from model_server.flags.saxml import PAX_SWITCHES
from sax.flags.process_logs import ProcessLogs, idle_sentence

STATIC = "--models=llama --model_keys=/sax/test/gpu --checkpoints=None"


def made(flags: str) -> ModelServerConfig:
    return make_config(shlex.split(flags))


def refused(flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        made(flags)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_line_of_saxmls_gpu_image_is_taken_as_it_is() -> None:
    config = made(
        "-sax_cell=/sax/test -port=10001 -platform_chip=h100 -platform_topology=8 "
        f"--jax_platforms=cuda {STATIC} --admin_port=10000 --alsologtostderr"
    )
    assert (config.port, config.platform_chip, config.platform_topology) == (10001, "h100", "8")
    assert (config.sax_cell, config.admin_port) == ("/sax/test", 10000)
    assert [spec.model_id for spec in config.static_models] == ["/sax/test/gpu"]
    assert config.jax_environment() == {"JAX_PLATFORMS": "cuda"}
    assert config.logs == ProcessLogs(alsologtostderr=True)


def test_switches_are_off_by_default_and_set_by_their_names() -> None:
    names = ("deterministic_rng", "early_reject_on_dormant", "keep_statically_loaded_models")
    default = made(STATIC)
    assert not any(getattr(default, name) for name in names)
    for name in names:
        assert getattr(made(f"{STATIC} --{name}"), name)
        assert not getattr(made(f"{STATIC} --{name} --no{name}"), name)


def test_options_of_jax_win_over_the_environment() -> None:
    config = made("--jax_platforms=cpu --nojax_enable_checks --jax_log_compiles=true")
    assert config.jax_environment() == {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_CHECKS": "false",
        "JAX_LOG_COMPILES": "true",
    }


def test_models_are_a_number_or_the_paths_to_load() -> None:
    assert (made("--models=3").models, made("--models=3").static_models) == (3, ())
    two = "--models=a,b --model_keys=/sax/test/a,/sax/test/b --checkpoints=None,None"
    assert made(two).models == len(made(two).static_models) == 2
    assert made(f"{two} --models=5").models == 5


def test_a_server_with_models_joins_a_cell_only_if_it_is_told_to() -> None:
    assert made("").sax_cell == "/sax/test"
    assert made(STATIC).sax_cell == ""
    for told in ("--sax_cell=/sax/test", "--admin=h:1", "--admin_port=10000"):
        assert made(f"{STATIC} {told}").sax_cell == "/sax/test"


def test_what_does_not_go_together_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        ("--model_keys=/sax/test/m", "--models names 0 model paths, --model_keys 1"),
        ("--keep_statically_loaded_models", "needs models to keep: --model_keys"),
        (f"{STATIC} --sax_cell=/sax/prod", "--model_keys has /sax/test/gpu, and this server"),
        ("--admin_port=70000", "--admin_port is 70000: give a port"),
        ("--admin_port=10000 --sax_cell=''", "--admin_port needs a cell"),
        ("--jax_profiler_port=-1", "--jax_profiler_port is -1"),
        ("--models=0", "--models is 0: give a number above 0"),
        ("--vmodule=x", "--vmodule has 'x'"),
    ):
        assert words in refused(flags, capsys), flags


def test_flags_of_pax_are_taken_and_said_to_change_nothing() -> None:
    for name, why in PAX_SWITCHES.items():
        assert made(f"--{name}").logs.idle_flags == (idle_sentence(f"--{name}", why),)


def test_flags_that_are_only_checked_end_the_process_well() -> None:
    with pytest.raises(SystemExit) as ended:
        made("--port=10001 --only_check_args")
    assert ended.value.code == 0


def test_help_teaches_every_flag_of_saxmls_server() -> None:
    told = make_parser().format_help()
    for name in _SAXML:
        assert f"--{name} " in told or f"--{name}," in told, name


# Those of model_service_main.py and of Pax, and those that absl gives every program.
_SAXML = (
    *PAX_SWITCHES,
    *("sax_cell", "model_filter_regex", "admin_port", "port", "platform_chip", "platform_topology"),
    *("tags", "jax_profiler_port", "jax_cache_dir", "models", "model_keys", "checkpoints"),
    *("model_config_overrides", "deterministic_rng", "host_ordinal", "early_reject_on_dormant"),
    *("keep_statically_loaded_models", "jax_platforms", "alsologtostderr", "logtostderr"),
    *("v", "verbosity", "vmodule", "logger_levels", "stderrthreshold", "log_dir", "flagfile"),
    *("undefok", "only_check_args", "showprefixforinfo", "pdb", "run_with_pdb"),
    *("pdb_post_mortem", "run_with_profiling", "profile_file", "use_cprofile_for_profiling"),
)
