"""The entry point of the command `sax`: `--version` is answered without loading the commands."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points


def main() -> None:
    if sys.argv[1:] != ["--version"]:
        from sax.cli.main import main as run

        run()
        return
    from sax.cli.installation import installation

    for point in entry_points(group="sax.commands", name="model-server"):
        point.load()  # with it comes its check of the kernels
    sys.stdout.write(f"{installation()}\n")


if __name__ == "__main__":
    main()
