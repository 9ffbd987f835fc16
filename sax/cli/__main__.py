"""The command `sax`, which loads what the line needs and no more; also `python -m sax.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        _tell_version()
        return
    if sys.argv[1:2] in (["up"], ["demo"]):  # they stay; others are over before it would pay
        from sax.cli.local.leash import import_quickly

        import_quickly("sax.cli")
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
