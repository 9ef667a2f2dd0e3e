"""The report of an experiment: README.md, table.csv and figures in its folder."""

from __future__ import annotations

import platform
from pathlib import Path

import lightning
import torch

from examples.paper.figures import draw_curves, draw_losses, training_curves
from examples.paper.grids import settings_of
from examples.paper.records import Results
from examples.paper.runner import Plan
from examples.paper.tables import rows, to_csv, to_markdown
from lightning_tpauc.metrics.reporting import metric_name
from lightning_tpauc.version import __version__

__all__ = ("environment", "write_report")


def write_report(plan: Plan, store: Results, folder: Path, command: str) -> Path:
    """Write tables and figures of what has finished.

    Args:
        plan: what was to be run.
        store: the results.
        folder: where to write.
        command: the command that was given, for the record.

    Returns:
        The path of the Markdown file.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = rows(plan, store)
    (folder / "table.csv").write_text(to_csv(table), encoding="utf-8")
    pictures = []
    for rectangle in plan.experiment.rectangles:
        curves = training_curves(plan, store, rectangle)
        if curves:
            name = f"curves_{metric_name(rectangle)}.png"
            draw_curves(curves, rectangle, plan.experiment.name, folder / name)
            pictures.append(f"![Training curves]({name})")
            name = f"losses_{metric_name(rectangle)}.png"
            if draw_losses(curves, rectangle, plan.experiment.name, folder / name):
                pictures.append(f"![Each method's own training loss; scales differ]({name})")
    parts = (f"# {plan.experiment.name}", _protocol(plan, store, command), to_markdown(plan, table), *pictures)
    path = folder / "README.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def environment() -> str:
    """Versions and machine, in one line.

    Example:
        >>> "torch" in environment()
        True
    """
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return (
        f"lightning-tpauc {__version__}, torch {torch.__version__}, lightning {lightning.__version__}, "
        f"Python {platform.python_version()}, {device}"
    )


def _protocol(plan: Plan, store: Results, command: str) -> str:
    experiment = plan.experiment
    schedule = plan.schedule or experiment.schedule
    length = f"{schedule.steps} steps" if schedule.steps else f"{schedule.epochs} epochs"
    changed = "" if plan.schedule is None else " (shortened; the paper's schedule is longer)"
    folds = f"fold {', '.join(str(f) for f in plan.folds(searching=True))} of {plan.num_folds}"
    validation = f"the validation part of {folds}" if experiment.folds else "the given validation part"
    runs = f"{plan.num_folds} folds" if experiment.folds else "the given split"
    outcomes = [outcome for _, outcome in store]
    hours = sum(outcome.seconds for outcome in outcomes) / 3600
    source, arguments = experiment.data
    given = ", ".join(f"{name}={value}" for name, value in arguments.items() if name != "batch_size")
    others = "; the paper's values are of OGB's selection of these molecules" if source == "SMILESDataModule" else ""
    return f"""Command: `{command}`

- {source}: {given}{others}.
- {length}{changed}, step sizes times 0.1 after {", ".join(map(str, schedule.milestones))}; backbone
  {experiment.model[0]}; weight decay 2e-4; 64 examples a step unless a method's name says otherwise.
- {_budget(plan)}, all for the same number of {_steps(plan, store)}. A setting is chosen by its mean value on
  {validation}{_where(plan)}; search runs never see test data.
  The chosen setting is then trained again, with test values, on {runs} and seeds
  {", ".join(map(str, plan.seeds))}; "runs" counts those that have finished.
- std is the sample standard deviation over these runs. The interval is a 95% stratified bootstrap of the first run's
  test scores: the error of the finite test set alone.
- {len(outcomes)} trainings, {hours:.2f} hours of processes. {environment()}."""


def _steps(plan: Plan, store: Results) -> str:
    """What all methods have as many of; how many steps that is, where epochs are longer for some than for others."""
    if (plan.schedule or plan.experiment.schedule).steps:
        return "steps"
    names: dict[int, dict[str, None]] = {}
    for rectangle in plan.experiment.rectangles:
        for method, runs in training_curves(plan, store, rectangle).items():
            for points in runs:
                names.setdefault(int(points[-1]["step"]), {})[method] = None
    if len(names) < 2:
        return "epochs"
    counts = "; ".join(f"{count} ({', '.join(map(repr, names[count]))})" for count in sorted(names))
    return (
        f"epochs, which is NOT the same number of steps: {counts}. An epoch is a pass over the class that takes more "
        "steps, or over all examples for cross-entropy"
    )


def _where(plan: Plan) -> str:
    if not plan.one_search:
        return ""
    first = plan.experiment.rectangles[0]
    return f", TPR ≥ {first.min_tpr:g} and FPR ≤ {first.max_fpr:g}, for all rectangles"


def _budget(plan: Plan) -> str:
    counts = {len(settings_of(method.grid, plan.budget)) for method in plan.experiment.methods}
    if len(counts) == 1:
        return f"Every method tries {counts.pop()} settings per rectangle"
    return f"Methods try {min(counts)} to {max(counts)} settings per rectangle (see the tables: NOT the same budget)"
