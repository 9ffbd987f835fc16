"""The log of a server process, by the flags that absl and Go's glog give every program."""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sax.errors import InvalidRequest
from sax.flags.last_lines import LastLines

_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = {
    **dict.fromkeys(("debug",), logging.DEBUG),
    **dict.fromkeys(("info", "0"), logging.INFO),
    **dict.fromkeys(("warning", "warn", "1"), logging.WARNING),
    **dict.fromkeys(("error", "2"), logging.ERROR),
    **dict.fromkeys(("fatal", "critical", "3"), logging.CRITICAL),
}
_QUIETER = {-1: logging.WARNING, -2: logging.ERROR}  # --v below 0, as absl counts

_DEBUGGER = "start the process with `python -m pdb -m` instead"
_PROFILER = "start the process with `python -m cProfile -m` instead"
# Flags that are taken and change nothing here, and why.
IDLE_SWITCHES = {
    "showprefixforinfo": "every line begins with its time, level and logger",
    "pdb": _DEBUGGER,
    "pdb_post_mortem": _DEBUGGER,
    "run_with_pdb": _DEBUGGER,
    "run_with_profiling": _PROFILER,
    "use_cprofile_for_profiling": _PROFILER,
}
IDLE_VALUES = {
    "profile_file": _PROFILER,
    "log_backtrace_at": "every error is logged with its stack where that helps",
    "log_link": "--log_dir has one file for each server, under one name",
    "logbuflevel": "lines are written at once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLogs:
    """Raises InvalidRequest naming the flag at fault."""

    v: int = 0  # 1 and more: debugging; -1: warnings; -2: errors
    vmodule: str = ""  # file=level,...
    logger_levels: str = ""  # logger:level,...
    stderrthreshold: str = ""
    alsologtostderr: bool | None = None  # None: not given
    logtostderr: bool | None = None
    log_dir: str = ""
    idle_flags: tuple[str, ...] = ()  # a sentence for each that was given and means nothing here

    def __post_init__(self) -> None:
        self._verbose_files()
        self._levels_of_loggers()
        if self.stderrthreshold:
            _level("stderrthreshold", self.stderrthreshold)

    @classmethod
    def take_flags(cls, values: MutableMapping[str, Any]) -> ProcessLogs:
        """Build from parsed flags, removing them from `values`."""
        taken: dict[str, Any] = {field.name: values.pop(field.name) for field in fields(cls)}
        taken["idle_flags"] = tuple(taken["idle_flags"] or ())
        return cls(**taken)

    def start(self, program: str) -> None:
        """Configure the logging of this process, once. Raises InvalidRequest for --log_dir."""
        root = logging.getLogger()
        root.setLevel(_QUIETER.get(self.v, logging.CRITICAL) if self.v < 0 else logging.INFO)
        if self.v > 0 or self.vmodule:
            for name in (program, "sax"):
                logging.getLogger(name).setLevel(logging.DEBUG)
        for name, level in self._levels_of_loggers().items():
            logging.getLogger(name).setLevel(level)
        for handler in self._handlers(program):
            handler.setFormatter(logging.Formatter(_LINE))
            handler.addFilter(self._is_told)
            root.addHandler(handler)
        self._tell_of_idle(logging.getLogger(program))

    def _handlers(self, program: str) -> list[logging.Handler]:
        stderr = logging.StreamHandler(sys.stderr)
        if self.stderrthreshold and not (self.alsologtostderr or self.logtostderr):
            stderr.setLevel(_level("stderrthreshold", self.stderrthreshold))
        return [stderr, LastLines(), *([self._file(program)] if self.log_dir else ())]

    def _file(self, program: str) -> logging.Handler:
        try:
            return logging.FileHandler(Path(self.log_dir) / f"{program}.log")
        except OSError as exc:
            raise InvalidRequest(
                f"--log_dir {self.log_dir}: {exc}; give a folder that exists and can be written to",
                param="log_dir",
            ) from exc

    def _is_told(self, record: logging.LogRecord) -> bool:
        """Debugging lines of our own only with --v, and of the files of --vmodule."""
        if record.levelno >= logging.INFO or self.v > 0 or not self.vmodule:
            return True
        names = {record.module, record.name}
        return any(
            fnmatch.fnmatchcase(name, pattern)
            for pattern in self._verbose_files()
            for name in names
        )

    def _verbose_files(self) -> list[str]:
        found: list[str] = []
        for entry in filter(None, self.vmodule.split(",")):
            pattern, _, level = entry.rpartition("=")
            if not (pattern and level.lstrip("-").isdecimal()):
                raise InvalidRequest(
                    f"--vmodule has {entry!r}: write file=level, e.g. scheduler=1,*_server=2",
                    param="vmodule",
                )
            found += [pattern] if int(level) > 0 else []
        return found

    def _levels_of_loggers(self) -> dict[str, int]:
        levels: dict[str, int] = {}
        for entry in filter(None, self.logger_levels.split(",")):
            name, colon, level = entry.rpartition(":")
            if not colon:
                raise InvalidRequest(
                    f"--logger_levels has {entry!r}: write logger:level, e.g. sax.client:DEBUG",
                    param="logger_levels",
                )
            levels[name] = _level("logger_levels", level)
        return levels

    def _tell_of_idle(self, logger: logging.Logger) -> None:
        for sentence in self.idle_flags:
            logger.info("%s", sentence)
        if False in (self.alsologtostderr, self.logtostderr):
            logger.info("logs go to stderr here, whatever --alsologtostderr and --logtostderr say")


def _level(flag: str, text: str) -> int:
    level = _LEVELS.get(text.strip().lower())
    if level is None:
        raise InvalidRequest(
            f"--{flag} has {text!r}: write debug, info, warning, error or fatal", param=flag
        )
    return level


class _IdleSwitch(argparse.BooleanOptionalAction):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        _note(namespace, self)


class _IdleValue(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        _note(namespace, self)


def _note(namespace: argparse.Namespace, flag: argparse.Action) -> None:
    given: Sequence[str] = namespace.idle_flags or ()
    namespace.idle_flags = [*given, idle_sentence(flag.option_strings[0], flag.help or "")]


def idle_sentence(flag: str, why: str) -> str:
    return f"{flag} changes nothing here: {why}"


def add_idle_flags(
    parser: argparse.ArgumentParser,
    title: str,
    switches: Mapping[str, str],
    values: Mapping[str, str] | None = None,
) -> None:
    """Add flags that are taken and change nothing, with the reasons, which are logged, too."""
    idle = parser.add_argument_group(title)
    for name, why in switches.items():
        idle.add_argument(f"--{name}", dest="idle_flags", action=_IdleSwitch, help=why)
    for name, why in (values or {}).items():
        idle.add_argument(
            f"--{name}", dest="idle_flags", action=_IdleValue, metavar="VALUE", help=why
        )


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `ProcessLogs.take_flags`."""
    flags = parser.add_argument_group("logging (absl's and glog's flags)")
    flags.add_argument(
        "--v",
        "--verbosity",
        type=int,
        default=0,
        metavar="N",
        help="1 or more: log details for debugging; -1: only warnings; -2: only errors "
        "(%(default)s)",
    )
    flags.add_argument(
        "--vmodule",
        default="",
        metavar="FILE=N,...",
        help="log such details of these files only, without .py; * stands for any letters",
    )
    flags.add_argument(
        "--logger_levels",
        default="",
        metavar="NAME:LEVEL,...",
        help="levels of Python loggers, e.g. sax.client:DEBUG",
    )
    flags.add_argument(
        "--stderrthreshold",
        default="",
        metavar="LEVEL",
        help="log to stderr from this level on: info, warning, error or fatal (default: all)",
    )
    for name in ("alsologtostderr", "logtostderr"):
        flags.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help="log everything to stderr, as is usual here, whatever --stderrthreshold says",
        )
    flags.add_argument(
        "--log_dir", default="", metavar="FOLDER", help="log to a file in this folder, too"
    )
    title = "flags of absl and glog that change nothing here"
    add_idle_flags(parser, title, IDLE_SWITCHES, IDLE_VALUES)
