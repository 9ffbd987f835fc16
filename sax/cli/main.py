"""The whole `sax` command: all commands of ours, of Saxml's command line and of other packages."""

from __future__ import annotations

from importlib.metadata import entry_points

from sax.cli.command_line import COMMANDS, command_line
from sax.cli.commands.saxml import register as register_saxutil
from sax.cli.commands.saxml import saxml_shim

app = command_line(*COMMANDS)
register_saxutil(app)
app.command("saxml-shim")(saxml_shim)
# A distribution that was installed under an older name, too, names the same functions again.
for point in {each.value: each for each in entry_points(group="sax.commands")}.values():
    point.load()(app)
