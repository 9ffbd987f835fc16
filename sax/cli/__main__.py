"""`python -m sax.cli`: the `sax` command where no console script is installed."""

from sax.cli.start import main

main()
