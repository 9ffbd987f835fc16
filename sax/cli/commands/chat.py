"""The `chat` command."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sax.cli.commands.requests import NoStream, Priority, Timeout
from sax.cli.conversation import Conversation
from sax.cli.image_files import HearVideos, ImageFiles, SoundFiles, VideoFiles
from sax.cli.model_argument import Model
from sax.cli.sampling_options import takes_sampling
from sax.cli.terminal import open_client
from sax.command import Results, say, wants_json
from sax.errors import InvalidRequest
from sax.fields.field import Kind
from sax.fields.sampling import SAMPLING, UNCHANGED, SamplingRow
from sax.format import quoted
from sax.types import SamplingParams

if TYPE_CHECKING:
    from sax.cli.mcp_tools import McpTools

try:
    import readline
except ImportError:  # a Python that was built without it: lines are read plainly
    readline = None

_FENCE = '"""'
_MOST_LINES = 1000  # of the history
_MOST_LETTERS = 4000  # of a line in it


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sax" / "chat_history"


class LineReader:
    """The terminal of one conversation; its history is kept for the next."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> LineReader:
        if readline is not None:
            readline.set_auto_history(False)
            # What is pasted stays one message; Python turns it off for its own prompt.
            readline.parse_and_bind("set enable-bracketed-paste on")
            with suppress(OSError):  # there is none yet
                readline.read_history_file(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if readline is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            readline.set_history_length(_MOST_LINES)
            readline.write_history_file(self._file)
        except OSError as exc:
            say(f"sax: the history is not kept: {exc}")

    def read(self) -> str:
        """Return the next message. Raises EOFError, KeyboardInterrupt.

        After three double quotes it goes on until there are three more.
        """
        line = self._line("> ")
        if not line.startswith(_FENCE):
            return line
        lines = [line.removeprefix(_FENCE)]
        while not lines[-1].rstrip().endswith(_FENCE):
            lines.append(self._line("... "))
        lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if not sys.stdout.isatty():  # which carries answers only
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        line = input(prompt)
        kept = line.strip() and len(line) <= _MOST_LETTERS and "\n" not in line
        if readline is not None and kept:
            readline.add_history(line)
        return line


HELP = '''\
  /help              this list
  /clear             forget the conversation
  /system TEXT       set the system prompt; without TEXT, remove it
  /set NAME VALUE    set a sampling field, e.g. /set temperature 0.5; alone, show them
  /show              the model, the system prompt and the fields that are set
  /bye               leave (so do /exit, Ctrl-D and, twice, Ctrl-C)
  """                begin a message of many lines; """ ends it; what is pasted needs none
  //TEXT             a message that begins with a slash
Ctrl-C stops an answer.'''
_CONVERTED: dict[Kind, Any] = {Kind.INTEGER: int, Kind.NUMBER: float, Kind.TEXT: str}


def goes_on(line: str, conversation: Conversation) -> bool:
    """Carry out a line; return False if it ends the conversation."""
    name, _, rest = line.strip().partition(" ")
    match name:
        case "/bye" | "/exit" | "/quit":
            return False
        case "/help" | "/?":
            say(HELP)
        case "/show":
            _show(conversation)
        case "/clear":
            conversation.turns.clear()
        case "/system":
            conversation.system = rest.strip() or None
        case "/set":
            _set(rest, conversation)
        case _:
            say(f"{quoted(name)} is not known; /help lists what is")
    return True


def _set(rest: str, conversation: Conversation) -> None:
    # Ollama's spellings: /set parameter NAME VALUE, /set system TEXT.
    words = rest.removeprefix("parameter ").split(maxsplit=1)
    if len(words) == 2 and words[0] == "system":
        conversation.system = words[1]
        return
    if len(words) < 2:
        for name in _settable():
            say(f"  {name} = {getattr(conversation.sampling, name)}")
        return
    name, value = words[0].replace("-", "_"), words[1]
    try:
        converted = _value(name, value)
    except InvalidRequest as error:
        say(error.text)
        return
    conversation.sampling = replace(conversation.sampling, **{name: converted})


def _show(conversation: Conversation) -> None:
    say(f"  model  {conversation.model_id}")
    say(f"  system {conversation.system or '(none)'}")
    for name in _settable():
        if (value := getattr(conversation.sampling, name)) != getattr(UNCHANGED, name):
            say(f"  {name} = {value}")


def _value(name: str, text: str) -> object:
    """Return the value of a field. Raises InvalidRequest."""
    if name not in _settable():
        raise InvalidRequest(
            f"{quoted(name)} cannot be set here; there are {', '.join(_settable())}"
        )
    row = SAMPLING[name]
    try:
        value = _CONVERTED[row.kind](text)
    except ValueError:
        raise InvalidRequest(f"{name} takes a number, not {quoted(text)}") from None
    if isinstance(value, str):
        return value
    if not _in_range(row, value):
        raise InvalidRequest(f"{name} cannot be {text}: {row.help}")
    return value


def _in_range(row: SamplingRow, value: float) -> bool:
    least = -math.inf if row.least is None else row.least
    most = math.inf if row.most is None else row.most
    return least <= value <= most and (row.above is None or value > row.above)


def _settable() -> list[str]:
    return [name for name, row in SAMPLING.items() if row.cli and row.kind in _CONVERTED]


_GREETING = "Ctrl-C stops an answer, Ctrl-D leaves, /help tells more."


@takes_sampling(temperature=0.0)
def chat(
    ctx: typer.Context,
    model: Model,
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="Ask this and exit; - reads stdin."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    *,
    sampling: SamplingParams,
    priority: Priority = 0,
    timeout: Timeout = None,
    image: ImageFiles = None,
    audio: SoundFiles = None,
    video: VideoFiles = None,
    audio_in_video: HearVideos = False,
    no_stream: NoStream = False,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL|COMMAND",
            help="An MCP server whose tools the model may call; repeatable.",
        ),
    ] = None,
    mcp_yes: Annotated[
        bool, typer.Option("--mcp-yes", "--mcp_yes", help="Call its tools without asking.")
    ] = False,
    tool_choice: Annotated[
        str,
        typer.Option(
            "--tool-choice",
            "--tool_choice",
            metavar="auto|none|required|TOOL",
            help="With --mcp: whether each message must be answered with a call first, or with "
            "one of this tool.",
        ),
    ] = "auto",
) -> Results:
    """Chat with a model.

    With QUESTION, asks it once and exits. Images, sounds and videos come with the first
    message. In a conversation,
    Ctrl-C stops an answer, /help lists what else there is, and Ctrl-D leaves. The lines that were
    typed are kept for the arrow keys, in ~/.local/state/sax/chat_history.

    \b
    Examples:
      sax chat smollm2
      sax chat /sax/test/smollm2 "What is the capital of France?"
      sax chat /sax/test/smollm2 --system "Answer in one word." --temperature 0.7
      sax chat /sax/test/gemma3 "What is this?" --image photo.jpg
      sax chat smollm2 --mcp "npx -y @modelcontextprotocol/server-filesystem ."
      sax chat smollm2 "Rain in Oslo?" --mcp ./weather --mcp-yes --tool-choice required
    """
    with open_client(ctx) as client, ExitStack() as opened:
        conversation = Conversation(
            client, model, sampling, system, priority, timeout, stream=not no_stream
        )
        conversation.files, conversation.sounds = [*(image or ())], [*(audio or ())]
        conversation.videos, conversation.heard = [*(video or ())], audio_in_video
        if mcp:
            conversation.tools = opened.enter_context(_tools(mcp, yes=mcp_yes))
            conversation.tool_choice = tool_choice
        elif tool_choice != "auto":
            raise InvalidRequest("--tool-choice needs tools: name an MCP server with --mcp")
        if question is not None:
            texts = [sys.stdin.read() if question == "-" else question]
        elif sys.stdin.isatty():
            converse(conversation)
            return
        else:
            texts = (line.removesuffix("\n") for line in sys.stdin if line.strip())
        yield from conversation.results(texts)


def _tools(servers: list[str], *, yes: bool) -> McpTools:
    from sax.cli.mcp_tools import McpTools  # not felt at the start of other commands

    return McpTools(servers, yes=yes)


def converse(conversation: Conversation) -> None:
    """Answer what is typed, until the person leaves. Raises InvalidRequest with --json."""
    if wants_json():
        raise InvalidRequest("--json is for a question, or for messages on stdin, one on a line")
    say(_GREETING)
    with LineReader(history_file()) as reader:
        interrupted = False
        while True:
            try:
                line = reader.read()
            except EOFError:
                say("")
                return
            except KeyboardInterrupt:
                say("")
                if interrupted:
                    return
                interrupted = True
                say("Ctrl-C again leaves, and so does Ctrl-D.")
                continue
            interrupted = False
            if not answered(line, conversation):
                return


def answered(line: str, conversation: Conversation) -> bool:
    """Answer a message, or do what a line with a slash asks for; False: leave."""
    if line.startswith("/") and not line.startswith("//"):
        return goes_on(line, conversation)
    if line.strip():
        conversation.answer_or_tell(line[1:] if line.startswith("//") else line)
    return True
