"""`python -m model_server.precompile`: compiles a model's programs ahead of its servers."""

from __future__ import annotations

import sys

from model_server.plan.precompile.command import main

if __name__ == "__main__":
    sys.exit(main())
