"""What a reader of a comparison has to know beside its table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lightning_tpauc.comparison.pictures import PANELS
from lightning_tpauc.comparison.plan import Run
from lightning_tpauc.comparison.results import Results
from lightning_tpauc.metrics.reporting import passes_below
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.version import __version__

#: Of fewer examples of a class a bootstrap interval is too narrow.
_FEW = 30


def title_of(results: Results, runs: Sequence[Run]) -> str:
    """What was compared, in one line."""
    min_tpr, max_fpr = results.rectangles[0]
    labels = f"Mean of {results.num_valued} labels, " if results.labels else ""
    return f"{labels}TPR >= {min_tpr:g} and FPR <= {max_fpr:g} on {results.part} data, {_repetitions(runs)}"


def _repetitions(runs: Sequence[Run]) -> str:
    seeds, folds = len({run.seed for run in runs}), len({run.fold for run in runs})
    parts = [f"{folds} folds"] if folds > 1 else []
    if seeds > 1 or not parts:
        parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    return " and ".join(parts)


def notes_of(results: Results, runs: Sequence[Run], left_out: Sequence[str]) -> tuple[str, ...]:
    """The notes, in the order in which a reader asks for them."""
    return (
        *_data(results),
        *_settings(results),
        *_intervals(results, runs),
        *left_out,
        f"lightning-tpauc {__version__}.",
    )


def left_out_methods(names: Sequence[str]) -> list[str]:
    """What to say of methods that can't train several labels.

    Example:
        >>> left_out_methods(["PAUCI"]), left_out_methods([])
        (['Without PAUCI: it trains one label.'], [])
    """
    return [f"Without {listed(names)}: {'it trains' if len(names) == 1 else 'they train'} one label."] if names else []


def unvalidated(names: Sequence[str], part: str) -> list[str]:
    """What to say of labels that were tested but did not take part in what validation chose.

    Example:
        >>> unvalidated(["skin"], "test")
        ['skin lacks a class in validation data: the other labels alone chose weights and learning rates.']
    """
    if not names or part != "test":  # else they have no value, which is said
        return []
    lacks = f"{listed(names)} {'lacks' if len(names) == 1 else 'lack'} a class in validation data"
    return [f"{lacks}: the other labels alone chose weights and learning rates."]


def _data(results: Results) -> list[str]:
    notes = []
    if results.labels:
        notes += _labels(results)
    elif results.scores:
        run = next(iter(results.scores.values()))[0]
        positives = int(run.target.sum())
        notes.append(f"Evaluated on {len(run.target):,} {results.part} examples, {positives:,} of them positive.")
    if results.part == "test":
        notes.append("The weights are those that validated best; test data chose nothing.")
    else:
        notes.append(
            "There is no test set: values are those of the validation data, which also chose the weights and settings, "
            "so they flatter all methods. Data that nothing was chosen on say more."
        )
    return notes


def _labels(results: Results) -> list[str]:
    """What the means of several labels are of."""
    labels, part = results.labels, results.part
    count = len(next(iter(results.scores.values()))[0].target)
    notes = [
        f"Evaluated on {count:,} {part} examples. Values and differences are means over {results.num_valued} labels, "
        "as val/tpauc is: nothing is pooled, and a label's weight changes its training alone. labels.csv has each."
    ]
    names = [label.name for label in labels if not label.has_value]
    if names:
        notes.append(f"No value, since a class has no {part} example: {listed(names)}. They count in no mean.")
    own = [f"{label.name} {label.rectangle}" for label in labels if label.rectangle != results.rectangles[0]]
    if own:
        notes.append(f"Trained and measured in a rectangle (min_tpr, max_fpr) of their own: {listed(own)}.")
    few = [label.name for label in labels if label.has_value and min(label.counts) < _FEW]
    if few:
        notes.append(f"Fewer than {_FEW} positives or negatives: {listed(few)}. Intervals see too little of the error.")
    if results.num_valued > PANELS:
        notes.append(f"The picture of ROC curves shows the {PANELS} labels with the most positives.")
    return notes


def _settings(results: Results) -> list[str]:
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
    edges = [row.method for row in results.rows if row.at_edge]
    if edges:
        notes.append(f"The best learning rate is at the edge of what was tried for {', '.join(edges)}: try more.")
    untrained = [row.method for row in results.rows if row.kept_start]
    if untrained:
        notes.append(
            f"Nothing validated better than the first weights for {', '.join(untrained)}: the training is too short, "
            "or the learning rate does not suit it. The row says nothing about the method. Train longer, or try more "
            "learning rates."
        )
    if any(row.method.startswith("STACO") for row in results.rows):
        notes.append(
            "STACO's own loss need not fall: the rectangle that it trains shrinks to the one that was asked for."
        )
    notes += _below(results)
    notes += [f"{row.method} failed: {row.failed}" for row in results.rows if row.failed]
    return notes


def _below(results: Results) -> list[str]:
    """Where a value of 0 says that the curve never comes into the rectangle."""
    if results.labels:
        return _labels_below(results)
    below = [row for row in results.rows if row.measured and statistics.fmean(row.measured["tpauc 0"]) == 0]
    reached = {row.method: statistics.fmean(row.measured["tpr_at_max_fpr"]) for row in below}
    return [f"{name}: {passes_below(tpr, *results.rectangles[0])}." for name, tpr in reached.items()]


def _labels_below(results: Results) -> list[str]:
    notes = []
    for name in results.scores:
        below = [label.name for label in results.labels if label.measured[name]["tpauc 0"] == 0]
        if below:
            notes.append(f"{name}: the ROC curve passes below the rectangle of {listed(below)}.")
    return notes


def _intervals(results: Results, runs: Sequence[Run]) -> list[str]:
    if not results.scores:
        return []
    found = (
        f"Intervals hold 95% of {results.num_resamples} stratified bootstrap resamples, which are the same for all "
        "methods."
    )
    if results.labels:
        found += (
            " A resample draws examples with all their labels; strata are the examples whose rarest positive label is "
            "the same, and those without a positive label. A label that lacks a class in a resample counts in no mean "
            "there. Intervals of single labels are of each by itself: of 20 labels that are level, one looks different."
        )
    if len(runs) == 1:
        return [f"{found} With one run they hold the error of the finite data, not that of training: use more seeds."]
    return [
        f"{found} Each also draws the {len(runs)} runs with replacement, so they hold the error of training, too; of "
        "few runs, somewhat less than all of it. Values are means over runs, with standard deviations in brackets."
    ]
