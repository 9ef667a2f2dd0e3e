"""The folder that a comparison writes: tables, pictures and a page of HTML."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_tpauc.comparison.label_tables import columns, heading, label_rows, labels_csv, labels_in_text
from lightning_tpauc.comparison.pictures import as_png, draw_progress, draw_roc, draw_roc_of_labels
from lightning_tpauc.comparison.results import Results, Row, measured_names
from lightning_tpauc.comparison.tables import as_csv, as_markdown, as_text
from lightning_tpauc.files import replacing

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2630; --paper: #fff; --line: #d9dee4; --head: #1f3b57; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe5eb; --paper: #14191f; --line: #36404a; --head: #8fb2d6; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
ul { padding-left: 1.3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
th { border-bottom: 2px solid var(--head); white-space: normal; vertical-align: bottom; }
@media (max-width: 1300px) { th, td { padding: .35rem .4rem; } table { font-size: 13px; } }
img { width: 100%; min-width: 720px; max-width: 1210px; height: auto; background: #fff; }
.verdicts li { font-weight: 600; }
"""
_TITLES = {"roc.png": "ROC curves", "training.png": "Training"}


@dataclass(frozen=True)
class Report:
    """What a comparison found; ``print(report)`` shows it.

    Attributes:
        results: values, intervals and differences.
        folder: where tables, pictures and ``report.html`` lie.
        text: the table, the verdicts and the notes.
    """

    results: Results
    folder: Path
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def verdicts(self) -> dict[str, str]:
        """By method, whether it is ahead of the baseline on the rectangle that was trained for."""
        return {name: self.results.verdict(name) for name in self.results.differences}


def write_report(results: Results, folder: Path, title: str) -> Report:
    """Write ``report.txt``, ``table.csv``, ``differences.csv``, ``runs.csv``, two pictures and ``report.html``.

    Of several labels also ``labels.csv`` and ``labels.md``: each of them.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    header, rows = _columns(results), [_cells(row, results) for row in results.rows]
    verdicts = _verdicts(results)
    notes = "\n".join(f"- {note}" for note in results.notes)
    parts = [title, as_text(header, rows), "\n".join(verdicts), labels_in_text(results), notes]
    text = "\n\n".join(part for part in parts if part)
    pictures = {}
    if results.scores:
        title_of_roc = f"ROC on {results.part} data"
        if results.labels:
            pictures["roc.png"] = as_png(draw_roc_of_labels(results.scores, results.labels, title_of_roc))
        else:
            pictures["roc.png"] = as_png(draw_roc(results.scores, results.rectangles[0], title_of_roc))
        pictures["training.png"] = as_png(draw_progress(results.curves, "Training: mean over runs, lowest to highest"))
    files: dict[str, str | bytes] = {
        "report.txt": text + "\n",
        "table.csv": _table(results),
        "differences.csv": _differences(results),
        "runs.csv": _runs(results),
        **pictures,
    }
    tables = {}
    if results.labels:
        tables[heading(results)] = of_labels = columns(results), label_rows(results, results.labels)
        files |= {"labels.csv": labels_csv(results), "labels.md": as_markdown(*of_labels)}
    files["report.html"] = as_page(title, header, rows, verdicts, results.notes, pictures, tables)
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content if isinstance(content, bytes) else content.encode())
    return Report(results, folder, text)


def _of(rectangle: tuple[float, float]) -> str:
    return f"TPR >= {rectangle[0]:g}, FPR <= {rectangle[1]:g}"


def _columns(results: Results) -> list[str]:
    areas = [f"TPAUC ({min_tpr:g}, {max_fpr:g})" for min_tpr, max_fpr in results.rectangles]
    min_tpr, max_fpr = results.rectangles[0]
    points = [f"TPR at FPR {max_fpr:g}", f"FPR at TPR {min_tpr:g}"]
    return ["method", areas[0], "95% interval", *areas[1:], "AUROC", "AP", *points, "seconds", "examples", "optimizer"]


def _cells(row: Row, results: Results) -> list[str]:
    if row.failed:
        return [row.method, "failed", *[""] * (len(_columns(results)) - 2)]
    low, high = row.interval[0]
    areas, others = measured_names(results.rectangles)
    return [
        row.method,
        mean_and_std(row.measured[areas[0]]),
        f"{low:.3f} to {high:.3f}",
        *(mean_and_std(row.measured[name]) for name in (*areas[1:], *others)),
        f"{statistics.fmean(row.seconds):.1f}",
        f"{row.examples:,}",
        row.optimizer,
    ]


def _verdicts(results: Results) -> list[str]:
    labels = f"mean of {results.num_valued} labels, " if results.labels else ""
    return [
        f"{name} against {results.baseline}, {labels}{_of(rectangle)}: {results.verdict(name, k)}"
        for k, rectangle in enumerate(results.rectangles)
        for name in results.differences
    ]


def _table(results: Results) -> str:
    areas, others = measured_names(results.rectangles)
    named = {f"tpauc {k}": f"tpauc_{r[0]:g}_{r[1]:g}" for k, r in enumerate(results.rectangles)}
    columns = [f"{named.get(name, name)}_{what}" for name in (*areas, *others) for what in ("mean", "std")]
    header = [
        "method",
        *columns,
        "interval_low",
        "interval_high",
        "seconds",
        "examples",
        "optimizer",
        "tried",
        "failed",
    ]
    rows: list[list[Any]] = []
    for row in results.rows:
        values: list[Any] = []
        for name in (*areas, *others):
            own = row.measured.get(name, ())
            values += [statistics.fmean(own) if own else None, statistics.stdev(own) if len(own) > 1 else None]
        ends: Sequence[Any] = row.interval[0] if row.interval else (None, None)
        seconds = statistics.fmean(row.seconds) if row.seconds else None
        rows.append([row.method, *values, *ends, seconds, row.examples, row.optimizer, row.tried, row.failed])
    return as_csv(header, rows)


def _differences(results: Results) -> str:
    rows = [
        [name, results.baseline, *results.rectangles[k], *found, results.verdict(name, k)]
        for name, all_found in results.differences.items()
        for k, found in enumerate(all_found)
    ]
    header = ["method", "baseline", "min_tpr", "max_fpr", "difference", "interval_low", "interval_high", "verdict"]
    return as_csv(header, rows)


def _runs(results: Results) -> str:
    areas, others = measured_names(results.rectangles)
    header = ["method", "run", "seconds", *(f"tpauc_{r[0]:g}_{r[1]:g}" for r in results.rectangles), *others]
    rows = [
        [row.method, k, seconds, *(row.measured[name][k] for name in (*areas, *others))]
        for row in results.rows
        for k, seconds in enumerate(row.seconds)
        if row.measured
    ]
    return as_csv(header, rows)


def mean_and_std(values: Sequence[float]) -> str:
    """The mean, and of several values the sample standard deviation.

    Example:
        >>> mean_and_std([0.5]), mean_and_std([0.25, 0.75])
        ('0.500', '0.500 (0.354)')
    """
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ({statistics.stdev(values):.3f})"


def as_page(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    verdicts: Sequence[str],
    notes: Sequence[str],
    pictures: Mapping[str, bytes],
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = MappingProxyType({}),
) -> str:
    """The page; it is well-formed XML as well.

    Example:
        >>> page = as_page("A < B", ["method"], [["A"]], ["level"], [], {})
        >>> "<h1>A &lt; B</h1>" in page, "<td>A</td>" in page
        (True, True)
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        _list(verdicts, "verdicts"),
        _table_of_page(header, rows),
        *(f"<h2>{escape(name)}</h2>{_table_of_page(*table)}" for name, table in tables.items()),
        *(_picture(name, content) for name, content in pictures.items()),
        "<h2>How to read it</h2>",
        _list(notes, "notes"),
    ]
    sized = '<meta name="viewport" content="width=device-width, initial-scale=1" />'
    head = f'<meta charset="utf-8" />{sized}<title>{escape(title)}</title><style>{_STYLE}</style>'
    content = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def _table_of_page(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _list(lines: Sequence[str], kind: str) -> str:
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{entries}</ul>' if lines else ""


def _picture(name: str, content: bytes) -> str:
    title = _TITLES.get(name, name)
    data = base64.b64encode(content).decode()
    image = f'<img alt="{escape(title)}" src="data:image/png;base64,{data}" />'
    return f'<h2>{escape(title)}</h2><div class="wide">{image}</div>'
