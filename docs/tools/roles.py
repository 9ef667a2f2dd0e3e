"""Docstrings use roles of reStructuredText for links and formulas; the site is Markdown."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(?P<short>~?)(?P<target>[^`<]+)`")
_MATH = re.compile(r":math:`(?P<formula>[^`]+)`")
_BLOCK = re.compile(r"^(?P<indent> *)\.\. math::(?P<first>.*)\n(?P<rest>(?:\n|(?P=indent) +.*\n?)*)", re.MULTILINE)


class Roles(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by Griffe for each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring with code in place of links, `$` round formulas, and examples as Google's style names them."""
    text = _BLOCK.sub(_displayed, text)
    text = _MATH.sub(lambda match: f"${match['formula'].strip()}$", text)
    text = _ROLE.sub(lambda match: f"`{match['target'].split('.')[-1] if match['short'] else match['target']}`", text)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)


def _displayed(match: re.Match[str]) -> str:
    lines = [match["first"].strip(), *(line.strip() for line in match["rest"].splitlines())]
    formula = " ".join(line for line in lines if line)
    return f"{match['indent']}$$ {formula} $$\n\n"
