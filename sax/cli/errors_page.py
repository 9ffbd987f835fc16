"""Generates docs/reference/errors.md from the error table: `make docs`."""

from __future__ import annotations

from sax.errors import TABLE, Retry

_WHO = {
    Retry.NOBODY: "nobody",
    Retry.CLIENT: "the caller, after Retry-After",
    Retry.LOCATOR: "the SDK, at another replica; then the caller",
}


def page() -> str:
    rows = (
        f"| `{error.__name__}` | {_first_line(error)} | {line.grpc} | {line.http} | "
        f"{_WHO[line.retry]} |"
        for error, line in TABLE.items()
    )
    return "\n".join(
        (
            "# Errors",
            "",
            "Generated from `sax/errors.py` by `make docs`. The text of an error says what "
            "happened and what to do about it.",
            "",
            "| error | meaning | gRPC code | HTTP status | retried by |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
        )
    )


def _first_line(error: type) -> str:
    return (error.__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    print(page(), end="")
