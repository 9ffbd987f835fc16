from __future__ import annotations

from sax.cli.saxutil.main import main

main()
