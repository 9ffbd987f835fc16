"""What is wrong with the commands of a page: programs, verbs, flags, manifests, bodies.

Pure but for kubectl, which is asked for its help and renders what `-k` names.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import typer
from jsonschema import Draft202012Validator
from typer.core import TyperGroup

from k8s.render.gcloud import install_command
from sax.cli.main import app
from tests.http_gateway.described import document
from tests.k8s.manifests import ROOT, CannotRender, render
from tests.k8s.page.programs import BOOL, VALUE, Flags, command_of, programs
from tests.k8s.page.shell import blocks, commands, made, typed_in_prose, unset_variables

# Programs of every shell whose flags are not looked at.
_SHELL = {"cat", "cd", "echo", "export", "mkdir", "printf", "sed"}
_CONTROLLERS = ("jobset", "lws", "kueue")
Json = dict[str, Any]
# Of the click that this typer brings or uses.
_UsageError: Any = typer.BadParameter.__base__
_URL = re.compile(r"^\$\{LB_IP\}:\$\{PORT\}(/\w+)$")


def check_page(page: str) -> list[str]:
    """Every finding, with the command that it is about."""
    texts = blocks(page)
    own = frozenset(made(texts))
    found = [f"${name} is read before the page sets it" for name in unset_variables(texts)]
    for text in texts:
        found += _told(text, own)
    for text in typed_in_prose(page):
        # A sentence may name a command and leave out what it needs.
        found += [said for said in _told(text, own) if ": Missing " not in said]
    return found


def _told(text: str, own: frozenset[str]) -> Iterator[str]:
    for command in commands(text):
        for said in check(tuple(command), own):
            yield f"{' '.join(command)[:120]}: {said}"


@functools.cache
def check(command: tuple[str, ...], own: frozenset[str] = frozenset()) -> list[str]:
    """The findings of one command. own: files and folders that the page makes."""
    return list(_findings(command, own))


def _findings(command: Sequence[str], own: Collection[str]) -> Iterator[str]:
    program, *words = command
    if any("$(" in word for word in words):
        yield "commands in quotes are not read: assign them to a variable first"
    if program == "sax":
        yield from _sax(words)
    elif program == "pip":
        yield from _pip(words)
    elif program == "kubectl" or program in programs():
        yield from _with_table(program, words)
        if program == "kubectl":
            yield from _manifests(words, own)
        if program == "curl":
            yield from _request(words)
    elif program not in _SHELL:
        yield "no table has the flags of this program"


def _with_table(program: str, words: Sequence[str]) -> Iterator[str]:
    command = command_of(program, words)
    if command is None:
        yield f"{program} has no such command, or the table lacks it"
        return
    rest = iter(words[len(command.name.split()) :])
    for word in rest:
        if word == "--":
            return
        if word.startswith("-") and word != "-":
            yield from _wrong_flag(word, rest, command.flags)
        elif (program, command.name) == ("docker", "run"):
            return  # the image: the rest is for its entry point


def _wrong_flag(word: str, rest: Iterator[str], flags: Flags) -> Iterator[str]:
    name, given, value = word.partition("=")
    kind = flags.get(name) or _negated(name, flags)
    if kind is None:
        yield f"there is no flag {name}"
    elif kind == BOOL:
        if given and value not in ("true", "false"):
            yield f"{name} takes no value"
    else:
        value = value if given else next(rest, "")
        if not value or value.startswith("--"):
            yield f"{name} lacks its value"
        elif kind != VALUE and "$" not in value and value not in kind:
            yield f"{name} is one of {', '.join(kind)}, not {value}"


def _negated(name: str, flags: Flags) -> str | None:
    """gcloud's switches have a second name with no-."""
    positive = f"--{name.removeprefix('--no-')}"
    return BOOL if name.startswith("--no-") and flags.get(positive) == BOOL else None


def _manifests(words: Sequence[str], own: Collection[str]) -> Iterator[str]:
    named = [(words[at], word) for at, word in enumerate(words[1:]) if words[at] in ("-k", "-f")]
    if words[0] == "kustomize":
        named += [("-k", word) for word in words[1:2]]
    for flag, name in named:
        if words[0] == "logs" or name == "-" or name in own:
            continue
        if flag == "-k":
            yield from _folder(name)
        elif name.startswith("https://"):
            yield from _release(name)
        elif not (ROOT / name).is_file():
            yield f"there is no file {name}"


def _folder(name: str) -> Iterator[str]:
    try:
        render(ROOT / name)
    except CannotRender as problem:
        yield str(problem)


def _release(url: str) -> Iterator[str]:
    known = {install_command(each).split()[-1] for each in _CONTROLLERS}
    if url not in known:
        yield f"{url} is not what `sax k8s doctor` tells to install"


def _sax(words: Sequence[str]) -> Iterator[str]:
    """What our own command line says to these words, without doing anything."""
    command: Any = typer.main.get_command(app)
    context, rest = command.context_class(command, info_name="sax"), list(words)
    try:
        while isinstance(command, TyperGroup):
            name, command, rest = command.resolve_command(context, rest)
            context = command.context_class(command, parent=context, info_name=name)
        command.make_context(context.info_name, rest, parent=context.parent)
    except _UsageError as problem:
        yield problem.format_message()


def _pip(words: Sequence[str]) -> Iterator[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {f".[{name}]" for name in extras["optional-dependencies"]}
    if words[0] != "install" or not set(words[1:]) <= known:
        yield f"write pip install with one of {', '.join(sorted(known))}"


def _request(words: Sequence[str]) -> Iterator[str]:
    """Is this what the gateway of either generation takes?"""
    paths = [found[1] for word in words if (found := _URL.match(word))]
    if len(paths) != 1:
        yield "write one ${LB_IP}:${PORT}/PATH"
        return
    method = words[words.index("--request") + 1].lower() if "--request" in words else "get"
    body = words[words.index("--data") + 1] if "--data" in words else None
    for generation in (1, 2):
        told = partial("{} of SAXML_GENERATION={}: {}".format, paths[0], generation)
        yield from map(told, _refused(document(generation), method, paths[0], body))


def _refused(whole: Json, method: str, path: str, body: str | None) -> Iterator[str]:
    operation = whole["paths"].get(path, {}).get(method)
    if operation is None:
        yield f"there is no {method.upper()} {path}"
        return
    try:
        read = json.loads(body or "null")
    except ValueError as problem:
        yield f"the body is not JSON: {problem}"
        return
    validator = Draft202012Validator(_schema(operation) | {"components": whole["components"]})
    yield from (error.message for error in validator.iter_errors(read))


def _schema(operation: Json) -> Json:
    """What a body must be. A GET is described by its query, which a body may stand for.

    Generation 1 takes no query, and OpenAPI has no words for a body of a GET.
    """
    if "requestBody" in operation:
        return operation["requestBody"]["content"]["application/json"]["schema"]
    if (query := operation.get("parameters")) is None:
        return {}
    return {
        "type": "object",
        "properties": {each["name"]: each["schema"] for each in query},
        "required": [each["name"] for each in query if each.get("required")],
        "additionalProperties": False,
    }
