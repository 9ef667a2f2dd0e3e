"""The folder that a comparison writes: a page of HTML, the same as text, pictures, and numbers as CSV."""

from __future__ import annotations

import base64
import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from lightning_tpauc.comparison.pictures import as_png, draw_progress, draw_roc
from lightning_tpauc.comparison.plan import Run
from lightning_tpauc.comparison.results import LabelResults, Results, Row, measured_names, measures, short
from lightning_tpauc.files import replacing
from lightning_tpauc.metrics.reporting import passes_below
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.version import __version__

#: Of fewer examples of a class a bootstrap interval is too narrow.
_FEW = 30
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } .verdicts li { font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: .35rem .5rem; border-bottom: 1px solid #d9dee4; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #1f3b57; white-space: normal; vertical-align: bottom; }
img { width: 100%; max-width: 1210px; height: auto; }
"""


class Table(NamedTuple):
    """Cells of text, which the report shows aligned and the page as HTML.

    Example:
        >>> table = Table(["method", "area"], [["A", "0.5"], ["B & C", "0.25"]])
        >>> print(table.text())
        method  area
        A        0.5
        B & C   0.25
        >>> "<td>B &amp; C</td>" in table.html()
        True
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Aligned columns: the first one to the left, the others to the right."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
        )

    def html(self) -> str:
        """A table that scrolls sideways by itself."""
        heads = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
        body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


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
    """Write ``report.html``, ``report.txt``, ``runs.csv`` and two pictures."""
    tables = {"": _methods(results)}
    texts = [title, tables[""].text(), "\n".join(_verdicts(results))]
    if len(results.labels) > 1:
        heading = "TPAUC of each label" + (f", and the difference to {results.baseline}" if results.differences else "")
        tables[heading] = _labels(results)
        texts.append(f"{heading}\n\n{tables[heading].text()}")
    texts.append("\n".join(f"- {note}" for note in results.notes))
    text = "\n\n".join(part for part in texts if part)
    pictures: dict[str, bytes] = {}
    if results.scores:
        pictures = {"ROC curves": as_png(draw_roc(results)), "Training": as_png(draw_progress(results.curves))}
    files: dict[str, str | bytes] = {
        "report.txt": text + "\n",
        "report.html": _page(title, results, tables, pictures),
        "runs.csv": _as_csv(_runs(results)),
        **dict(zip(("roc.png", "training.png"), pictures.values(), strict=False)),
    }
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content if isinstance(content, bytes) else content.encode())
    return Report(results, folder, text)


# ---------------------------------------------------------------- tables


def _methods(results: Results) -> Table:
    areas = [f"TPAUC ({min_tpr:g}, {max_fpr:g})" for min_tpr, max_fpr in results.rectangles]
    min_tpr, max_fpr = results.rectangles[0]
    points = [f"TPR at FPR {max_fpr:g}", f"FPR at TPR {min_tpr:g}"]
    header = ["method", areas[0], "95% interval", *areas[1:], "AUROC", "AP", *points, "seconds", "examples"]
    return Table([*header, "optimizer"], [_method(row, results, len(header) + 1) for row in results.rows])


def _method(row: Row, results: Results, width: int) -> list[str]:
    if row.interval is None:
        return [row.method, "failed", *[""] * (width - 2)]
    first, *values = (
        _mean_and_std(row.measured[n]) for names in measured_names(len(results.rectangles)) for n in names
    )
    interval = f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"
    seconds = f"{statistics.fmean(row.seconds):.1f}"
    return [row.method, first, interval, *values, seconds, f"{row.examples:,}", row.optimizer]


def _mean_and_std(values: Sequence[float]) -> str:
    """The mean, and of several values the sample standard deviation."""
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ({statistics.stdev(values):.3f})"


def _labels(results: Results) -> Table:
    """A row for each label: its positives, and of each method TPAUC and the difference to the baseline."""
    methods = sorted(results.scores, key=lambda name: name != results.baseline)
    header = ["label", "rectangle", "positives", "negatives"]
    for name in methods:
        header += [name, *(["difference (95%)"] if name in results.differences else [])]
    rows = []
    for label in results.labels:
        cells = [label.name, f"({label.rectangle[0]:g}, {label.rectangle[1]:g})"]
        cells += [f"{label.num_positives:,}", f"{label.num_negatives:,}"]
        for name in methods:
            value, found = label.measured[name]["tpauc 0"], label.differences.get(name)
            cells.append("-" if math.isnan(value) else f"{value:.3f}")
            if found is not None:
                cells.append(f"{short(found.estimate, sign='+')} ({short(found.lower)} to {short(found.upper)})")
            elif name in results.differences:
                cells.append("-")
        rows.append(cells)
    return Table(header, rows)


def _verdicts(results: Results) -> list[str]:
    labels = f"mean of {len(results.valued)} labels, " if len(results.labels) > 1 else ""
    return [
        f"{name} against {results.baseline}, {labels}TPR >= {min_tpr:g}, FPR <= {max_fpr:g}: {results.verdict(name, k)}"
        for k, (min_tpr, max_fpr) in enumerate(results.rectangles)
        for name in results.differences
    ]


def _runs(results: Results) -> list[dict[str, Any]]:
    """Values of each run and label: what all else is made of."""
    rows: list[dict[str, Any]] = []
    named = {f"tpauc {k}": f"tpauc_{r[0]:g}_{r[1]:g}" for k, r in enumerate(results.rectangles)}
    named["tpauc 0"] = "tpauc"
    for row in results.rows:
        for k, seconds in enumerate(row.seconds):
            for own, label in zip(results.scores[row.method][k].of_labels(), results.labels, strict=True):
                values = measures(*own, [label.rectangle, *results.rectangles[1:]])
                about = {"method": row.method, "run": k, "label": label.name}
                about |= {"min_tpr": label.rectangle[0], "max_fpr": label.rectangle[1]}
                rows.append({**about, **{named.get(n, n): v for n, v in values.items()}, "seconds": seconds})
    return rows


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; numbers have five decimals, and what has no value is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow([("" if math.isnan(v) else f"{v:.5f}") if isinstance(v, float) else v for v in row.values()])
    return file.getvalue()


# ---------------------------------------------------------------- the page


def _page(title: str, results: Results, tables: Mapping[str, Table], pictures: Mapping[str, bytes]) -> str:
    """The page; it is well-formed XML as well."""
    parts = [f"<h1>{escape(title)}</h1>", _list(_verdicts(results), "verdicts")]
    parts += [f"<h2>{escape(name)}</h2>{table.html()}" if name else table.html() for name, table in tables.items()]
    for name, picture in pictures.items():
        image = f'<img alt="{name}" src="data:image/png;base64,{base64.b64encode(picture).decode()}" />'
        parts.append(f'<h2>{name}</h2><div class="wide">{image}</div>')
    parts += ["<h2>How to read it</h2>", _list(results.notes, "notes")]
    sized = '<meta name="viewport" content="width=device-width, initial-scale=1" />'
    head = f'<meta charset="utf-8" />{sized}<title>{escape(title)}</title><style>{_STYLE}</style>'
    content = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def _list(lines: Sequence[str], kind: str) -> str:
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{entries}</ul>' if lines else ""


# ---------------------------------------------------------------- what a reader has to know beside the table


def title_of(results: Results, runs: Sequence[Run]) -> str:
    """What was compared, in one line."""
    min_tpr, max_fpr = results.rectangles[0]
    labels = f"Mean of {len(results.valued)} labels, " if len(results.labels) > 1 else ""
    seeds, folds = len({run.seed for run in runs}), len({run.fold for run in runs})
    parts = [f"{folds} folds"] if folds > 1 else []
    if seeds > 1 or not parts:
        parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    return f"{labels}TPR >= {min_tpr:g} and FPR <= {max_fpr:g} on {results.part} data, {' and '.join(parts)}"


def notes_of(results: Results, num_runs: int, left_out: Sequence[str]) -> tuple[str, ...]:
    """The notes, in the order in which a reader asks for them."""
    notes = [*(_of_data(results) if results.scores else []), *_of_settings(results)]
    notes += _of_intervals(results, num_runs) if results.scores else []
    return (*notes, *left_out, f"lightning-tpauc {__version__}.")


def _of_data(results: Results) -> list[str]:
    labels, part = results.labels, results.part
    count = len(next(iter(results.scores.values()))[0].target)
    if len(labels) == 1:
        notes = [f"Evaluated on {count:,} {part} examples, {labels[0].num_positives:,} of them positive."]
    else:
        notes = [
            f"Evaluated on {count:,} {part} examples. Values and differences are means over {len(results.valued)} "
            "labels, as val/tpauc is: nothing is pooled, and a label's weight changes its training alone."
        ]
    notes += _of_labels(results, labels)
    if part == "test":
        notes.append("The weights are those that validated best; test data chose nothing.")
    else:
        notes.append(
            "There is no test set: values are those of the validation data, which also chose the weights and settings, "
            "so they flatter all methods. Data that nothing was chosen on say more."
        )
    return notes


def _of_labels(results: Results, labels: Sequence[LabelResults]) -> list[str]:
    notes = []
    if names := [label.name for label in labels if not label.has_value]:
        notes.append(f"No value, since a class has no {results.part} example: {listed(names)}. They count in no mean.")
    if own := [f"{label.name} {label.rectangle}" for label in labels if label.rectangle != results.rectangles[0]]:
        notes.append(f"Trained and measured in a rectangle (min_tpr, max_fpr) of their own: {listed(own)}.")
    few = [label.name for label in results.valued if min(label.num_positives, label.num_negatives) < _FEW]
    if few:
        which = f": {listed(few)}" if len(labels) > 1 else ""
        notes.append(f"Fewer than {_FEW} positives or negatives{which}. Intervals see too little of the error.")
    return notes


def _of_settings(results: Results) -> list[str]:
    tried = max(row.tried for row in results.rows)
    equal = len({row.examples for row in results.rows if not row.failed}) <= 1
    seen = "the same number of examples" if equal else "as many examples, up to the steps between two validations"
    notes = [
        f"All methods start from the same weights and see {seen}. Settings of the methods are the package's defaults, "
        "and so is the optimizer if none was given."
    ]
    if tried == 1:
        notes.append(
            "Each method ran with one learning rate. Another one may suit a baseline better: --trials 5 (trials=5) "
            "tries five, and chooses on validation data."
        )
    else:
        notes.append(f"Each method tried {tried} learning rates; the best mean validation TPAUC chose.")
    if edges := [row.method for row in results.rows if row.at_edge]:
        notes.append(f"The best learning rate is at the edge of what was tried for {', '.join(edges)}: try more.")
    if untrained := [row.method for row in results.rows if row.kept_start]:
        notes.append(
            f"Nothing validated better than the first weights for {', '.join(untrained)}: the training is too short, "
            "or the learning rate does not suit it. The row says nothing about the method. Train longer, or try more "
            "learning rates."
        )
    for name in results.scores:
        below = [label for label in results.labels if label.measured[name]["tpauc 0"] == 0]
        if below and len(results.labels) == 1:
            notes.append(f"{name}: {passes_below(below[0].measured[name]['tpr_at_max_fpr'], *results.rectangles[0])}.")
        elif below:
            where = listed(label.name for label in below)
            notes.append(f"{name}: the ROC curve passes below the rectangle of {where}.")
    return [*notes, *(f"{row.method} failed: {row.failed}" for row in results.rows if row.failed)]


def _of_intervals(results: Results, num_runs: int) -> list[str]:
    found = (
        f"Intervals hold 95% of {results.num_resamples} stratified bootstrap resamples, which are the same for all "
        "methods."
    )
    if len(results.labels) > 1:
        found += (
            " A resample draws examples with all their labels; strata are the examples whose rarest positive label is "
            "the same, and those without a positive label. A label that lacks a class in a resample counts in no mean "
            "there. Intervals of single labels are of each by itself: of 20 labels that are level, one looks different."
        )
    if num_runs == 1:
        return [f"{found} With one run they hold the error of the finite data, not that of training: use more seeds."]
    return [
        f"{found} Each also draws the {num_runs} runs with replacement, so they hold the error of training, too; of "
        "few runs, somewhat less than all of it. Values are means over runs, with standard deviations in brackets."
    ]
