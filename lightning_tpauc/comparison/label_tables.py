"""Tables of several labels: what came out for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_tpauc.comparison.results import LabelResults, Results, measured_names, most_positives, short
from lightning_tpauc.comparison.tables import as_csv, as_text

#: At most so many labels are in the text; the files have all.
_IN_TEXT = 20


def _methods(results: Results) -> list[str]:
    """The baseline, if it has values, and the others that have."""
    return sorted(results.scores, key=lambda name: name != results.baseline)


def _has_own_rectangles(results: Results) -> bool:
    return any(label.rectangle != results.rectangles[0] for label in results.labels)


def heading(results: Results) -> str:
    """What the table of labels shows."""
    return "TPAUC of each label" + (f", and the difference to {results.baseline}" if results.differences else "")


def columns(results: Results) -> list[str]:
    """Header of the table of labels."""
    header = ["label", *(["rectangle"] if _has_own_rectangles(results) else []), "positives", "negatives"]
    for name in _methods(results):
        header += [name, *(["difference (95%)"] if name in results.differences else [])]
    return header


def label_rows(results: Results, labels: Sequence[LabelResults]) -> list[list[str]]:
    """A row for each of some labels: its positives, and of each method TPAUC and the difference to the baseline."""
    rows = []
    for label in labels:
        rectangle = [f"({label.rectangle[0]:g}, {label.rectangle[1]:g})"] if _has_own_rectangles(results) else []
        cells = [label.name, *rectangle, f"{label.num_positives:,}", f"{label.num_negatives:,}"]
        for name in _methods(results):
            value, found = label.measured[name]["tpauc 0"], label.differences.get(name)
            cells.append("-" if math.isnan(value) else f"{value:.3f}")
            if found is not None:
                cells.append(f"{short(found.estimate, sign='+')} ({short(found.lower)} to {short(found.upper)})")
            elif name in results.differences:
                cells.append("-")
        rows.append(cells)
    return rows


def labels_in_text(results: Results) -> str:
    """The table of labels as text, of many those with the most positives; nothing with one label."""
    if not results.labels:
        return ""
    chosen = most_positives(results.labels, _IN_TEXT)
    table = (
        heading(results) + "\n\n" + as_text(columns(results), label_rows(results, [results.labels[k] for k in chosen]))
    )
    count = len(results.labels)
    more = f"\n\nThese are the {len(chosen)} of {count} labels with the most positives; labels.csv has all."
    return table + (more if len(chosen) < count else "")


def labels_csv(results: Results) -> str:
    """CSV with a row for each label and method."""
    areas, others = measured_names(results.rectangles)
    further = [f"tpauc_{r[0]:g}_{r[1]:g}" for r in results.rectangles[1:]]
    ends = ["difference", "interval_low", "interval_high"]
    about = ["label", "min_tpr", "max_fpr", "positives", "negatives"]
    rows = [
        [
            *(label.name, *label.rectangle, label.num_positives, label.num_negatives, method),
            *(None if math.isnan(values[name]) else values[name] for name in (*areas, *others)),
            *(label.differences.get(method) or (None, None, None)),
        ]
        for label in results.labels
        for method, values in label.measured.items()
    ]
    return as_csv([*about, "method", "tpauc", *further, *others, *ends], rows)
