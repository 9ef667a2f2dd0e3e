"""A page of HTML that holds everything: no network, no other file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ("as_page",)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2630; max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #d9dee4; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #1f3b57; }
img { max-width: 100%; height: auto; }
.verdicts li { font-weight: 600; }
"""
_TITLES = {"roc.png": "ROC curves", "training.png": "Training"}


def as_page(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    verdicts: Sequence[str],
    notes: Sequence[str],
    pictures: Mapping[str, bytes],
) -> str:
    """The page; it is well-formed XML as well.

    Args:
        title: what was compared on what.
        header: names of the table's columns.
        rows: cells of the table.
        verdicts: a line for each comparison.
        notes: what a reader has to know.
        pictures: PNG files by name.

    Example:
        >>> page = as_page("A < B", ["method"], [["A"]], ["level"], [], {})
        >>> "<h1>A &lt; B</h1>" in page, "<td>A</td>" in page
        (True, True)
    """
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _list(verdicts, "verdicts"),
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>',
        *(_picture(name, content) for name, content in pictures.items()),
        "<h2>How to read it</h2>",
        _list(notes, "notes"),
    ]
    head = f'<meta charset="utf-8" /><title>{escape(title)}</title><style>{_STYLE}</style>'
    content = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def _list(lines: Sequence[str], kind: str) -> str:
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{entries}</ul>' if lines else ""


def _picture(name: str, content: bytes) -> str:
    title = _TITLES.get(name, name)
    data = base64.b64encode(content).decode()
    return f'<h2>{escape(title)}</h2><img alt="{escape(title)}" src="data:image/png;base64,{data}" />'
