"""The folder that a comparison writes: a text, pictures, a page of HTML that holds both, and numbers as CSV."""

import base64
import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from lightning_tpauc.comparison.results import OURS, Results, have_both, measures, short
from lightning_tpauc.data.examples import listed
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing
from lightning_tpauc.functional import roc_polyline

COLOURS = ("#1f3b57", "#f2a33a", "#4c9a6a", "#b0413e", "#7b6ba8", "#5aa5c8", "#8a8f98", "#c77fb0", "#9a7b4f", "#2f7f7a")
#: At most so many labels have ROC curves of their own.
PANELS = 12
#: Of fewer examples of a class a bootstrap interval is too narrow.
_FEW = 30
#: The page; it is well-formed XML as well.
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><title>{title}</title>
<style>body {{ max-width: 1400px; margin: 2rem auto; }} pre {{ overflow: auto; }} img {{ max-width: 100%; }}</style>
</head><body><pre>{text}</pre>
{pictures}
</body></html>
"""


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


def write_report(results: Results, folder: Path, repetitions: str, tried: int, notes: Sequence[str]) -> Report:
    """Write ``report.html``, ``report.txt``, ``runs.csv`` and two pictures."""
    (min_tpr, max_fpr), several = results.rectangles[0], len(results.labels) > 1
    mean = f"mean of {len(results.valued)} labels, " if several else ""
    title = f"{mean}TPR >= {min_tpr:g} and FPR <= {max_fpr:g} on {results.part} data, {repetitions}"
    title = title[0].upper() + title[1:]
    verdicts = [
        f"{name} against {results.baseline}, {mean}TPR >= {min_tpr:g}, FPR <= {max_fpr:g}: {results.verdict(name, k)}"
        for k, (min_tpr, max_fpr) in enumerate(results.rectangles)
        for name in results.differences
    ]
    where = f"TPR >= {min_tpr:g}, FPR <= {max_fpr:g}"
    verdicts += [f"{OURS} against {name}, {where}: {results.verdict_beside(name)}" for name in results.beside]
    listing = "\n".join(f"- {note}" for note in _notes(results, tried, notes))
    parts = [title, _methods(results), "\n".join(verdicts), _labels(results) if several else "", listing]
    text = "\n\n".join(part for part in parts if part)
    drawn = {"roc.png": draw_roc, "training.png": draw_progress} if results.runs else {}
    pictures = {name: as_png(draw(results)) for name, draw in drawn.items()}
    sources = {name: base64.b64encode(picture).decode() for name, picture in pictures.items()}
    shown = "\n".join(f'<img alt="{name}" src="data:image/png;base64,{source}" />' for name, source in sources.items())
    page = _PAGE.format(title=escape(title), text=escape(text), pictures=shown)
    texts = {"report.txt": f"{text}\n", "report.html": page, "runs.csv": _runs(results)}
    for name, written in {**{name: own.encode() for name, own in texts.items()}, **pictures}.items():
        with replacing(folder / name) as file:
            file.write(written)
    return Report(results, folder, text)


# ---------------------------------------------------------------- tables


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _methods(results: Results) -> str:
    first, *others = measures(results.rectangles)
    header = ["method", first, "95% interval", *others, "seconds", "examples", "optimizer"]
    rows = []
    for name, runs in results.runs.items():
        first, *values = map(_mean_and_std, results.values[name].nanmean(1).unbind(1))
        _, low, high, *_ = results.intervals[name]
        about = [f"{fmean(run.seconds for run in runs):.1f}", f"{runs[0].examples:,}", runs[0].optimizer]
        rows.append([name, first, f"{max(low, 0.0):.3f} to {min(high, 1.0):.3f}", *values, *about])
    return _aligned([header, *rows, *([name, "failed", *[""] * (len(header) - 2)] for name in results.failed)])


def _mean_and_std(values: Tensor) -> str:
    """The mean, and of several values the sample standard deviation."""
    return f"{values.mean():.3f}" if len(values) < 2 else f"{values.mean():.3f} ({values.std():.3f})"


def _labels(results: Results) -> str:
    """A row for each label: its positives, and of each method TPAUC and the difference to the baseline."""
    methods = sorted(results.runs, key=lambda name: name != results.baseline)
    header = ["label", "rectangle", "positives", "negatives"]
    for name in methods:
        header += [name, *(["difference (95%)"] if name in results.differences else [])]
    rows = []
    for label in results.labels:
        cells = [label.name, "({:g}, {:g})".format(*label.rectangle)]
        cells += [f"{label.num_positives:,}", f"{label.num_negatives:,}"]
        for name in methods:
            cells.append(f"{label.tpauc[name]:.3f}" if label.has_value else "-")
            if name in label.differences:
                estimate, lower, upper, *_ = label.differences[name]
                cells.append(f"{short(estimate, sign='+')} ({short(lower)} to {short(upper)})")
            elif name in results.differences:
                cells.append("-")
        rows.append(cells)
    return _aligned([header, *rows])


def _runs(results: Results) -> str:
    """Values of each run and label as CSV, with five decimals; what has no value is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "run", "label", "min_tpr", "max_fpr", *measures(results.rectangles), "seconds"])
    for name, of_runs in results.values.items():
        for run, of_labels in enumerate(of_runs.tolist()):
            for label, values in zip(results.labels, of_labels, strict=True):
                numbers = [*label.rectangle, *values, results.runs[name][run].seconds]
                written = ["" if math.isnan(number) else f"{number:.5f}" for number in numbers]
                writer.writerow([name, run, label.name, *written])
    return file.getvalue()


# ---------------------------------------------------------------- what a reader has to know beside the table


def _notes(results: Results, tried: int, others: Sequence[str]) -> list[str]:
    """The notes, in the order in which a reader asks for them."""
    found = [*_of_data(results)] if results.runs else []
    rates = f"{tried} learning rates; validation data chose" if tried > 1 else "one learning rate: try more (`trials`)"
    found.append(
        "All methods start from the same weights and see the same number of examples, up to the steps between two "
        f"validations. Their settings are the package's defaults, with {rates}."
    )
    if untrained := results.untrained:
        found.append(
            f"Nothing validated better than the first weights for {', '.join(untrained)}: the row says nothing about "
            "the method. Train longer, or try more learning rates."
        )
    found += [f"{name} failed: {why}" for name, why in results.failed.items()]
    if results.runs:
        num_runs = len(next(iter(results.runs.values())))
        grouped = "" if next(iter(results.runs.values()))[0].groups is None else " of whole groups"
        error = ". With one run they lack the noise of training: use more seeds."
        if num_runs > 1:
            error = f", and the spread of {num_runs} runs. Values are means over runs, with standard deviations."
        found.append(
            f"95% intervals, by {results.num_resamples} stratified bootstrap resamples{grouped}, the same for all "
            f"methods{error} Those of single labels come from each label alone."
        )
    return [*found, *others]


def _of_data(results: Results) -> list[str]:
    labels, part, several = results.labels, results.part, len(results.labels) > 1
    what = f"{labels[0].num_positives:,} of them are positive"
    if several:
        what = f"Values and differences are means over {len(results.valued)} labels; nothing is pooled"
    count = len(next(iter(results.runs.values()))[0].target)
    notes = [f"Evaluated on {count:,} {part} examples. {what}.", "The weights are those that validated best."]
    if part == "validation":
        notes[1] += " There is no test set: the same validation data chose them, so values flatter all methods."
    if names := [label.name for label in labels if not label.has_value]:
        notes.append(f"No value, since a class has no {part} example: {listed(names)}. They count in no mean.")
    if own := [f"{label.name} {label.rectangle}" for label in labels if label.rectangle != results.rectangles[0]]:
        notes.append(f"Trained and measured in a rectangle (min_tpr, max_fpr) of their own: {listed(own)}.")
    if few := [label.name for label in results.valued if min(label.num_positives, label.num_negatives) < _FEW]:
        which = f": {listed(few)}" if several else ""
        notes.append(f"Fewer than {_FEW} positives or negatives{which}. Their intervals are too narrow.")
    return notes


# ---------------------------------------------------------------- pictures


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure and its axes, with a light grid."""
    # a figure without pyplot: no window system, no global state to clean up
    figure = import_extra("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns)))
    for ax in axes:
        ax.grid(alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def as_png(figure: Any) -> bytes:
    """The picture; the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def draw_band(
    ax: Any, runs: Sequence[Sequence[Mapping[str, float]]], name: str, label: str, colour: str, x: str = "step"
) -> None:
    """Draw the mean over the runs that have values at the places of the first one, and lowest to highest as a band."""
    drawn = [run for run in ({p[x]: p[name] for p in points if name in p} for points in runs) if run]
    drawn = [run for run in drawn if run.keys() == drawn[0].keys()]
    if not drawn:
        return
    places, values = list(drawn[0]), np.array([list(run.values()) for run in drawn])
    ax.plot(places, values.mean(axis=0), color=colour, label=label, linewidth=1.8)
    ax.fill_between(places, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def draw_roc(results: Results) -> Any:
    """ROC curves of all methods: a panel for each label that has a value, of many for those with the most positives."""
    panels = [k for k, label in enumerate(results.labels) if label.has_value]
    panels = sorted(sorted(panels, key=lambda k: -results.labels[k].num_positives)[:PANELS])
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    size = 5.5 if columns == 1 else 2.75
    figure, axes = new_figure(rows, columns, (size * columns, size * rows + 1.2))
    for ax, k in zip(axes, panels, strict=False):
        _draw_label(ax, results, k)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), fontsize=8, frameon=False)
    figure.suptitle(f"ROC on {results.part} data", fontsize=11)
    return figure


def _draw_label(ax: Any, results: Results, number: int) -> None:
    label = results.labels[number]
    min_tpr, max_fpr = label.rectangle
    ax.fill_between([0, max_fpr], min_tpr, 1, color="#f2a33a", alpha=0.18, linewidth=0, label="rectangle")
    grid = np.linspace(0, 1, 2001) ** 2  # dense where rectangles are
    for k, (name, runs) in enumerate(results.runs.items()):
        of_label = [run.of_labels()[number] for run in runs]
        curves = [roc_polyline(*own) for own in of_label if have_both(own[1])]
        height = np.mean([np.interp(grid, fpr.numpy(), tpr.numpy()) for fpr, tpr in curves], axis=0)
        look = {"color": COLOURS[k % len(COLOURS)], "linestyle": ("-", "--")[k % 2], "linewidth": 1.8}
        ax.plot([0, *grid], [0, *height], label=name, **look)
    ax.plot([0, 1], [0, 1], color="#8a8f98", linewidth=1, linestyle=":")  # chance
    right = 1.0 if max_fpr >= 0.2 else 5 * max_fpr  # else it can't be seen
    ax.set(xlim=(-0.01 * right, 1.01 * right), ylim=(-0.01, 1.01))
    counts = f"{label.num_positives:,} of {label.num_positives + label.num_negatives:,} positive"
    ax.set_title(f"{textwrap.fill(label.name, 34)}\n{counts}".strip(), fontsize=9, parse_math=False)
    ax.set_xlabel("False positive rate", fontsize=8)
    ax.set_ylabel("True positive rate", fontsize=8)


def draw_progress(results: Results) -> Any:
    """Validation TPAUC of all methods against the examples that were seen."""
    figure, (ax,) = new_figure(1, 1, (8, 4.2))
    for k, (name, runs) in enumerate(results.runs.items()):
        draw_band(ax, [run.curve for run in runs], "tpauc", name, COLOURS[k % len(COLOURS)], x="examples")
    ax.set(xlabel="examples that were trained on", ylabel="validation TPAUC: mean, lowest to highest run")
    ax.legend(fontsize=8, frameon=False)
    return figure
