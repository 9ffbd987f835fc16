"""No view of the page breaks a rule of axe: light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser import READY, broken_rules, tab, until
from tests.each_case import each_case
from tests.http_gateway.page.test_browser import Saying, gateway
from tests.http_gateway.page.test_chats import answered

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

SAID = """# Head

$x^2$ and `code` [link](https://a.test)

```python
def f(): # no
  return 'x', 1
```

| a |
|---|
| 1 |

- [x] done
"""
# Each view, and the element that opens it.
VIEWS = {
    "chat": "",
    "models": "#model",
    "code": "#share-open",
    "help": "#help-open",
    "compare": "#tab-compare",
    "cell": "#tab-cell",
    "requests": "#requests-part summary",
    "keys": "#keys-part summary",
    "changes": "#changes-part summary",
    "log": "#log-part summary",
    "versions": "#models button",
}


@each_case("scheme, width", [("light", 1300), ("dark", 1300), ("light", 375), ("dark", 375)])
def test_no_rule_of_axe_is_broken(browser: Any, scheme: str, width: int) -> None:
    broken: dict[str, list[str]] = {}
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 760}}
    with gateway(Saying(SAID)) as url, tab(browser, url, **look) as page:
        until(page, READY)
        page.fill("#prompt", "Hello")
        page.keyboard.press("Enter")
        answered(page)
        page.locator(".message.answer .katex").wait_for()
        for name, opens in VIEWS.items():
            if opens:
                page.click(opens)
            broken[name] = broken_rules(page)
            if name == "models":
                page.keyboard.press("Escape")
            if page.locator("dialog[open]").count():
                page.keyboard.press("Escape")
    assert not any(broken.values()), broken
