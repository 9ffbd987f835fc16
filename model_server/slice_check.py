"""`python -m model_server.slice_check`: checks that all hosts of a slice see all its devices."""

from __future__ import annotations

import sys

from model_server.process.slice_check import main

if __name__ == "__main__":
    sys.exit(main())
