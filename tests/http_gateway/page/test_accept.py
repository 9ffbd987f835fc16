"""Browsers ask for HTML; programs get what they always got."""

from http_gateway.page.accept import prefers_html
from tests.each_case import each_case

CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@each_case(
    "accept, html",
    [
        (CHROME, True),
        ("text/html", True),
        ("TEXT/HTML; q=0.5", True),
        ("text/html;level=1;q=0.5, application/json;q=0.4", True),
        ("text/html;q=0.5, application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=much", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("", False),
    ],
)
def test_html_is_for_those_who_name_it(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html
