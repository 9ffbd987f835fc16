import sys

# The command line of httpx, with click, rich and pygments: a gateway calls it as a library.
sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType]
