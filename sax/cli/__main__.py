"""`python -m sax.cli`: the `sax` command where no console script is installed."""

from sax.cli.main import main

main()
