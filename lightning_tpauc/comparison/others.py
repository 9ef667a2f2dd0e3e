"""Other people's models in a comparison: scikit-learn's classifiers, and files of scores."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.comparison.results import Outcome
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import as_groups


def is_file(other: Any) -> bool:
    """Whether ``other`` names a file of scores."""
    return isinstance(other, (str, Path))


def check_others(others: Mapping[str, Any], methods: Sequence[str], folds: int | None) -> None:
    """Raise :class:`ArgumentError` for what is neither a classifier of scikit-learn nor the path of a CSV file."""
    for name, other in others.items():
        wanted = ""
        if not is_file(other) and not (hasattr(other, "fit") and hasattr(other, "get_params")):
            wanted = "scikit-learn classifiers, such as HistGradientBoostingClassifier(), or paths of CSV files"
        elif name in methods:
            wanted = f"named otherwise than the methods {', '.join(methods)}"
        elif is_file(other) and folds is not None:
            wanted = "classifiers where there are `folds`, since a file holds the scores of a test set"
        if wanted:
            msg = f"Expected `others` to be {wanted}, but got {name!r}: {other!r}."
            raise ArgumentError(msg)


def outcome_of(other: Any, datamodule: Any, seed: int, *, test: bool) -> Outcome:
    """Scores of the test or the validation data: of a file, or of a classifier fitted on the training examples.

    A classifier has ``seed`` as its ``random_state``. It sees the tables that networks are trained on, each example as
    often as it likes.
    """
    from sklearn.base import clone

    datamodule.setup("fit")
    datamodule.setup("test")
    loader, start = datamodule.test_dataloader() if test else datamodule.val_dataloader(), time.perf_counter()
    inputs, target = _table(loader, wanted=not is_file(other))
    if is_file(other):
        scores, count = _read(Path(other), len(target)), 0
    else:
        parts = [_table(own, wanted=True)[0] for own in datamodule.scoring_dataloaders()]
        count, model = sum(map(len, parts)), clone(other)
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        model.fit(np.concatenate(parts), np.repeat([1, 0], [len(own) for own in parts]))
        found = (
            model.predict_proba(inputs)[:, 1] if hasattr(model, "predict_proba") else model.decision_function(inputs)
        )
        scores = torch.as_tensor(found, dtype=torch.float64)
    known, groups = target >= 0, getattr(loader, "groups", None)
    return Outcome(
        scores[known, None],
        target[known, None],
        None if groups is None else as_groups(torch.as_tensor(groups)[known]),
        seconds=time.perf_counter() - start,
        examples=count,
        optimizer="" if is_file(other) else type(other).__name__,
    )


def _table(loader: Any, *, wanted: bool) -> tuple[Any, Tensor]:
    """Inputs ``(N, d)``, where they are ``wanted``, and labels ``(N,)`` of all examples, in their order."""
    batches: list[tuple[Any, Tensor, Tensor]] = [
        (batch.inputs if wanted else None, batch.target, batch.example_id) for batch in loader
    ]
    for inputs, target, _ in batches:
        if target.ndim > 1 or (wanted and not (isinstance(inputs, Tensor) and inputs.ndim == 2)):
            msg = "`others` takes data with one label, and classifiers take tables: inputs `(N, d)` as one tensor."
            raise UnsupportedError(msg)
    order = torch.cat([ids for *_, ids in batches]).argsort()
    target = torch.cat([target for _, target, _ in batches])[order].long()
    return torch.cat([inputs for inputs, *_ in batches])[order].numpy() if wanted else None, target


def _read(path: Path, count: int) -> Tensor:
    """The scores of a file with the columns ``example_id``, 0 to ``count - 1``, and ``score``."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = {int(row["example_id"]): float(row["score"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, TypeError, ValueError) as error:
        msg = f"`others`: {str(path)!r} is no CSV file with columns `example_id` and `score` ({error!r})."
        raise ArgumentError(msg) from None
    if rows.keys() != set(range(count)):
        msg = f"`others`: {str(path)!r} has scores of {len(rows)} examples, but expected `example_id` 0 to {count - 1}."
        raise ArgumentError(msg)
    return torch.tensor([rows[k] for k in range(count)], dtype=torch.float64)
