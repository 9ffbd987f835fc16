"""The Accept header: whether `/` is asked for by a browser or by a program. Pure."""

from __future__ import annotations


def prefers_html(accept: str) -> bool:
    """True if HTML is named and nothing that JSON could be is liked better.

    `*/*`, as curl and most programs send it, names nothing: they get what they always got.
    """
    weights = dict(_weight(part) for part in accept.lower().split(",") if part.strip())
    html = weights.get("text/html", 0.0)
    return html > 0 and html >= weights.get("application/json", 0.0)


def _weight(part: str) -> tuple[str, float]:
    name, *parameters = (each.strip() for each in part.split(";"))
    given = (each.partition("=") for each in parameters)
    quality = next((value for key, _, value in given if key.strip() == "q"), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0
