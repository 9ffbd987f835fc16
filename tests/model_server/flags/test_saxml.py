"""The flags of Saxml's model server reach the config and the environment of jax."""

from __future__ import annotations

import shlex

import pytest

from model_server.config import ModelServerConfig
from model_server.flags.command_line import make_config, make_parser
from model_server.flags.saxml import PAX_SWITCHES, StaticFlags, static_models
from sax.errors import InvalidName
from sax.flags.process_logs import ProcessLogs, idle_sentence
from sax.types import ModelSpec, static_version

STATIC = "--models=llama --model_keys=/sax/test/gpu --checkpoints=None"
ONE, TWO = "/sax/test/one", "/sax/test/two"


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


def read(overrides: str = "", **changes: str) -> tuple[ModelSpec, ...]:
    lists = {"keys": f"{ONE}, {TWO}", "checkpoints": "None,gs://b/c", **changes}
    return static_models(StaticFlags(models=["llama,lm_cloud.X"], overrides=overrides, **lists))


def test_the_lists_name_models_in_the_same_order() -> None:
    one, two = read()
    assert (one.model_id, one.model_path, one.checkpoint) == (ONE, "llama", "None")
    assert (two.model_id, two.model_path, two.checkpoint) == (TWO, "lm_cloud.X", "gs://b/c")
    assert one.overrides == two.overrides == {}


def test_without_models_there_are_none() -> None:
    assert static_models(StaticFlags()) == ()


def test_overrides_are_a_json_object_for_each() -> None:
    for text in (
        '{"BATCH_SIZE": 4, "MESH": [1, 2]},{"QUANT": "int8"}',
        '{"BATCH_SIZE": 4, "MESH": [1, 2]}; {"QUANT": "int8"}',
        # As absl's lists want a comma written:
        '"{""BATCH_SIZE"": 4, ""MESH"": [1, 2]}","{""QUANT"": ""int8""}"',
        # Saxml's servers hand on the text of a value, which must be JSON itself:
        '{"BATCH_SIZE": "4", "MESH": "[1, 2]"},{"QUANT": "\\"int8\\""}',
    ):
        one, two = read(text)
        assert one.overrides == {"BATCH_SIZE": "4", "MESH": "[1, 2]"}, text
        assert two.overrides == {"QUANT": '"int8"'}, text


def test_lists_that_do_not_go_together_are_refused() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"keys": ONE}, "--models names 2 model paths, --model_keys 1 keys"),
        ({"checkpoints": ""}, "--checkpoints 0 checkpoints: give as many of each"),
        ({"keys": f"{ONE},{ONE}"}, f"--model_keys names {ONE} twice"),
        ({"overrides": "{}"}, "has 1 JSON objects for 2 models"),
        ({"overrides": "{},[]"}, r"has \[\]: give one JSON object"),
        ({"overrides": '{},{"A"}'}, "is not JSON"),
    ]
    for changes, words in cases:
        with pytest.raises(ValueError, match=words):
            read(**changes)


def test_a_key_names_its_cell() -> None:
    with pytest.raises(InvalidName):
        read(keys=f"{ONE},two")


def test_models_made_of_the_same_have_the_same_version() -> None:
    one, two = read('{"A": 1, "B": [1,2]},{}')
    published = ModelSpec(
        model_id="/sax/test/other",
        model_path="saxml.server.llama",
        checkpoint="None",
        replicas=2,
        overrides={"B": "[1, 2]", "A": "1"},
    )
    assert one.version == static_version(published) != two.version
    assert len(bytes.fromhex(one.version)) == 16
