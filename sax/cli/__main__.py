"""`python -m sax.cli`: the command `sax` where no console script is installed."""

from sax.cli.main import main

main()
