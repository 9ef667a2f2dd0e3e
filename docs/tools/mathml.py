"""Formulas of the pages as MathML, which browsers show by themselves: the site needs no script from elsewhere."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves: \(...\) in a line, \[...\] on its own.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(page_html: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _FORMULA.sub(_mathml, page_html)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    return convert(html.unescape(match[3]).strip(), display=display)
