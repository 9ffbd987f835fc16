"""The command `sax`, which loads what the line needs and no more; also `python -m sax.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        _tell_version()
        return
    from sax.cli.command_line import alone, command_line, run

    if name := alone(sys.argv[1:]):
        run(command_line(name))
    from sax.cli.main import app

    run(app)


def _tell_version() -> None:
    from importlib.metadata import entry_points

    from sax.cli.installation import installation

    for point in entry_points(group="sax.commands", name="model-server"):
        point.load()  # with it comes its check of the kernels
    sys.stdout.write(f"{installation()}\n")


if __name__ == "__main__":
    main()
