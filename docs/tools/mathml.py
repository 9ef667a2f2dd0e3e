"""Formulas of the pages as MathML, which browsers show by themselves: the site needs no script from elsewhere."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves: \(...\) in a line, \[...\] on its own.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


# A prime is raised already; in a superscript browsers raise it twice.
_PRIME = re.compile(r"<msup><mi>([^<]+)</mi><m[io]>&#x02032;</m[io]></msup>")


def on_page_content(page_html: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _FORMULA.sub(_mathml, page_html)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    return _PRIME.sub(r'<mrow><mi>\1</mi><mo lspace="0" rspace="0">&#x02032;</mo></mrow>', formula)
