"""Command-line flags of the model server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, get_args

from model_server.config import AUTO, ModelServerConfig, PrefixSharing
from model_server.flags.saxml import add_saxml_flags, take_static_models
from sax.auth.security import Security, add_security_flags
from sax.config import STRICT_VARIABLE
from sax.errors import SaxError
from sax.flags.parser import JAX_FLAG, ServerParser
from sax.flags.process_logs import ProcessLogs, add_log_flags

_DESCRIPTION = """\
A model server: loads the models its admin assigns to it and answers requests for them.

It joins the admin server of its cell and offers every model path it knows; publish a model there
(`sax publish`) and the admin loads it here. Models share the memory of this process's devices.
"""
_EXAMPLES = """\
examples:
  python -m model_server
      join the admin at 127.0.0.1:10000, answer on 127.0.0.1:10001
  python -m model_server --port 0 --slots 8 --kv_cache_bytes 268435456
      any free port, at most 8 sequences at once, a KV cache of 256 MiB
  SAX_ROOT=/tmp/sax python -m model_server --sax_cell /sax/test
      find the admin through the address file that it wrote there
  python -m model_server --models llama --model_keys /sax/test/m --checkpoints /models/m.gguf
      serve one model without an admin server: `saxutil lm.generate -proxy 127.0.0.1:10001 ...`

SIGTERM or Ctrl-C drains: new requests are refused, running ones get --drain_seconds to finish.
The flags of Saxml's model server are here, in absl's spellings, too (-port=1,
--nodeterministic_rng); docs/reference/coming_from_saxml.md says what each of them does.
"""


def make_parser() -> ServerParser:
    default = ModelServerConfig()
    parser = ServerParser(
        "python -m model_server",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        takes_also=JAX_FLAG,
    )
    _add_network(parser, default)
    add_security_flags(
        parser, "names that may load and unload models here: the admin server's; * for everyone"
    )
    _add_platform(parser, default)
    _add_hosts(parser, default)
    _add_islands(parser, default)
    _add_disaggregation(parser, default)
    _add_engine(parser, default)
    _add_memory(parser, default)
    _add_programs(parser, default)
    add_saxml_flags(parser)
    add_log_flags(parser)
    return parser


def make_config(arguments: Sequence[str]) -> ModelServerConfig:
    """Parse a command line; on a bad one, print the error and exit with status 2."""
    parser = make_parser()
    values = vars(parser.parse_args(arguments))
    only_check = parser.take_own(values)
    for name in ("imports", "islands", "prefill_islands", "jax_flags"):
        values[name] = tuple(values[name] or ())
    for name in ("tags", "prefill_servers", "checkpoint_roots"):
        values[name] = tuple(word for word in values[name].split(",") if word)
    try:
        config = _config(values)
    except (ValueError, SaxError) as exc:
        parser.error(str(exc))
    if only_check:
        parser.exit()
    return config


def _config(values: dict[str, Any]) -> ModelServerConfig:
    """Raises ValueError, SaxError."""
    default = ModelServerConfig()
    static, values["models"] = take_static_models(values, default.models)
    if values["sax_cell"] is None:
        # As Saxml's: a server that has its models joins a cell only if it is told to.
        joins = not static or values["admin"] or values["admin_port"]
        values["sax_cell"] = default.sax_cell if joins else ""
    return ModelServerConfig(
        security=Security.take_flags(values),
        logs=ProcessLogs.take_flags(values),
        static_models=static,
        **values,
    )


def tokens_or_auto(text: str) -> int | str:
    """Parse --max_context. Raises ValueError."""
    return text if text == AUTO else int(text)


def _add_network(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("network")
    flags.add_argument("--host", default=default.host, help="address to listen on (%(default)s)")
    flags.add_argument(
        "--port", type=int, default=default.port, help="gRPC port; 0: any free one (%(default)s)"
    )
    flags.add_argument(
        "--advertise",
        default=default.advertise,
        metavar="HOST",
        help="host or address at which others reach this server (default: --host, or this "
        "machine's own address if that is 0.0.0.0)",
    )
    flags.add_argument(
        "--metrics_port",
        type=int,
        default=default.metrics_port,
        help="HTTP port of Prometheus /metrics and the probes /healthz and /readyz, on every host "
        "of a replica; 0: any free one, -1: off (default: two above --port, so 10003; a free one "
        "if that is taken)",
    )
    flags.add_argument(
        "--vllm_metric_names",
        action=argparse.BooleanOptionalAction,
        default=default.vllm_metric_names,
        help="expose metrics under vLLM's names, too (default: yes)",
    )
    flags.add_argument(
        "--max_message_bytes",
        type=int,
        default=default.max_message_bytes,
        help="largest gRPC request; it is refused before it is read. Raise it for custom methods "
        "that take more (%(default)s)",
    )
    flags.add_argument(
        "--sax_cell",
        help='cell to serve, as /sax/<cell>; "" joins none and accepts any model (default: '
        f"{default.sax_cell})",
    )
    flags.add_argument(
        "--admin",
        help="host:port of the admin server, or several separated by commas (default: $SAX_ADMIN, "
        "else the address found under $SAX_ROOT, else 127.0.0.1:10000)",
    )
    flags.add_argument(
        "--drain_seconds",
        type=float,
        default=default.drain_seconds,
        help="seconds for running requests to finish on unload or SIGTERM (%(default)s)",
    )


def _add_platform(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("what this server offers to the admin")
    flags.add_argument(
        "--platform_chip",
        default=default.platform_chip,
        help="cpu, tpuv5e, tpuv6e, h100, ... (%(default)s)",
    )
    flags.add_argument(
        "--platform_topology",
        default=default.platform_topology,
        help="chips of this replica: 1, 8, 2x4, 4x4x8, ... (%(default)s)",
    )
    flags.add_argument(
        "--import",
        action="append",
        dest="imports",
        metavar="MODULE",
        help="a Python module that registers custom models; repeatable",
    )
    flags.add_argument("--tags", default="", help="comma-separated tags by which models are placed")
    flags.add_argument(
        "--checkpoint_roots",
        default="",
        metavar="PLACES",
        help="comma-separated folders, gs:// and s3:// URLs below which checkpoints must lie, once "
        "links are resolved, and hf:// or hf://ORG for what may be fetched (default: any "
        "place that this process may read)",
    )
    flags.add_argument(
        "--open_seconds",
        type=float,
        default=default.open_seconds,
        help="time limit for a checkpoint's configuration, headers and tokenizer (%(default)s)",
    )
    flags.add_argument(
        "--model_filter_regex",
        default=default.model_filter_regex,
        help="offer only the model paths that fully match (%(default)s)",
    )


def _add_hosts(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("replicas of several hosts")
    flags.add_argument(
        "--hosts",
        default=default.hosts,
        help="comma-separated hosts, the primary first; or their number, if the environment (TPU, "
        "JobSet, LeaderWorkerSet, indexed Job) provides the rest (default: from the environment, "
        "else this host alone)",
    )
    flags.add_argument(
        "--host_ordinal",
        type=int,
        help="which of them this is, 0: the primary (default: from the environment)",
    )
    flags.add_argument(
        "--group_port",
        type=int,
        default=default.group_port,
        help="port on the primary where the hosts meet (%(default)s)",
    )
    flags.add_argument(
        "--host_timeout_seconds",
        type=float,
        default=default.host_timeout_seconds,
        help="a host silent for this long is lost, and the replica with it (%(default)s)",
    )
    flags.add_argument(
        "--bring_up_seconds",
        type=float,
        default=default.bring_up_seconds,
        help="time limit for all hosts to connect (%(default)s)",
    )
    flags.add_argument(
        "--cpu_devices", type=int, help="devices that a CPU host simulates (default: 1)"
    )


def _add_islands(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("islands (JAX_PLATFORMS=proxy, docs/explanation/pathways.md)")
    flags.add_argument(
        "--islands",
        type=island_numbers,
        metavar="NUMBERS",
        help="compute on these islands of the proxy server, e.g. 0,2 (default: all)",
    )
    flags.add_argument(
        "--prefill_islands",
        type=island_numbers,
        metavar="NUMBERS",
        help="compute long prompts on these islands and answers on the others (default: both on "
        "each)",
    )
    flags.add_argument(
        "--elastic_slices",
        type=int,
        metavar="N",
        help="be ready while at most N islands are lost (default: while one computes)",
    )


def island_numbers(text: str) -> tuple[int, ...]:
    """Parse --islands and --prefill_islands. Raises ValueError."""
    numbers = tuple(int(word) for word in text.split(","))
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError(text)
    return numbers


def _add_disaggregation(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("disaggregated prefill")
    flags.add_argument(
        "--prefill",
        action="store_true",
        help="prefill for servers that name this one in --prefill_servers; a prefill server joins "
        "no cell (--sax_cell '')",
    )
    flags.add_argument(
        "--prefill_servers",
        default="",
        help="comma-separated host:port of model servers that prefill for this one",
    )
    flags.add_argument(
        "--kv_expiry_seconds",
        type=float,
        default=default.kv_expiry_seconds,
        help="how long a prefill server keeps keys and values that nobody fetches (%(default)s)",
    )


def _add_engine(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("engine, for each model")
    flags.add_argument(
        "--slots", type=int, default=default.slots, help="sequences decoded at once (%(default)s)"
    )
    flags.add_argument(
        "--queue",
        type=int,
        default=default.queue,
        help="sequences that may wait for a slot; beyond that callers must retry (%(default)s)",
    )
    flags.add_argument(
        "--max_running_per_account",
        type=int,
        metavar="N",
        help="slots that one account (the name of a token, else a client address) may hold "
        "(default: all that no other account waits for)",
    )
    flags.add_argument(
        "--max_queued_per_account",
        type=int,
        metavar="N",
        help="sequences of one account that may wait for a slot; beyond that its callers must "
        "retry (default: the whole --queue; another account may wait beside a full queue with as "
        "many as an equal share of it)",
    )
    flags.add_argument(
        "--max_mixed_blocks",
        type=int,
        metavar="N",
        help="prompt blocks in a step that also decodes (default: as many as let such steps take "
        "on average at most twice as long as decodes alone, from times measured at load)",
    )
    flags.add_argument(
        "--steps_per_launch",
        type=int,
        metavar="N",
        help="decode steps that one launch computes while nobody waits, so that answers come N "
        "tokens at a time (default: 4 behind a proxy server, where a launch costs milliseconds; "
        "else 1); not with pipeline stages, draft models or handoffs of pages",
    )
    flags.add_argument(
        "--stream_interval_seconds",
        type=float,
        default=default.stream_interval_seconds,
        metavar="S",
        help="at most one message in this time in the middle of answers, with the tokens of all "
        "steps since the last; the first and the last token never wait (%(default)s; 0 sends "
        "every step)",
    )
    flags.add_argument(
        "--step_timeout_seconds",
        type=float,
        default=default.step_timeout_seconds,
        help="a step that takes longer than this, and than 20 times the longest one at load, "
        "hangs: stacks are logged, all requests fail, and the process ends to be restarted "
        "(%(default)s)",
    )


def _add_memory(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("memory")
    flags.add_argument(
        "--page_size",
        type=int,
        default=default.page_size,
        help="tokens per KV page (%(default)s)",
    )
    flags.add_argument(
        "--max_context",
        type=tokens_or_auto,
        metavar="TOKENS",
        help='longest prompt plus answer, in tokens; "auto": as many as memory holds in every slot '
        "(default: the model's own)",
    )
    flags.add_argument(
        "--kv_cache_bytes",
        type=int,
        help="bytes of KV cache per model and device (default: on a CPU a whole context in every "
        "slot, at most 1 GiB; elsewhere all that is free, or a share of it: --models)",
    )
    flags.add_argument(
        "--prefix_cache",
        choices=get_args(PrefixSharing),
        default=default.prefix_cache,
        help="keep the keys and values of prompts and answers for requests that begin alike: those "
        "of one tenant (an account and its user), shared by all tenants, or off (%(default)s). "
        "With shared, a caller can tell by the time to its first token whether somebody else sent "
        "the same prompt",
    )
    flags.add_argument(
        "--memory_limit_bytes",
        type=int,
        help="bytes that all models together may use (default: what the machine has)",
    )
    flags.add_argument(
        "--models",
        action="append",
        metavar="N or PATHS",
        help="models that are to share the memory: unless --kv_cache_bytes or KV_CACHE_BYTES says "
        "more, the KV cache of each takes an equal share of what is free when it loads, those to "
        f"come included (default: {default.models}, or as many as are loaded at start). Paths "
        "instead of a number are loaded at start, see --model_keys",
    )


def _add_programs(parser: argparse.ArgumentParser, default: ModelServerConfig) -> None:
    flags = parser.add_argument_group("compiled programs")
    flags.add_argument(
        "--programs",
        default=default.programs,
        metavar="PLACE",
        help="use programs that `sax precompile` wrote to this folder, gs:// or s3:// location, or "
        'with "checkpoint" those beside each checkpoint; programs are code, so only people who '
        "may run code here may be able to write there (default: none)",
    )
    flags.add_argument(
        "--jax_cache_dir", help="keep compiled programs here, to speed up the next load"
    )
    flags.add_argument(
        "--keep_programs",
        action=argparse.BooleanOptionalAction,
        default=default.keep_programs,
        help="on CPUs, with --jax_cache_dir: also keep the programs and weights of each model's "
        "last start there, so that the next one traces and reads nothing (default: yes)",
    )
    flags.add_argument(
        "--strict_compile",
        action=argparse.BooleanOptionalAction,
        default=bool(os.environ.get(STRICT_VARIABLE)),
        help="stop the engine if a program is compiled while serving, instead of only counting it "
        f"(default: if ${STRICT_VARIABLE} is set)",
    )
