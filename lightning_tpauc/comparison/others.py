"""Other people's models in a comparison: scikit-learn's classifiers, and files of scores."""

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


def check_others(others: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raise :class:`ArgumentError` for what can't stand in the table."""
    for name, other in others.items():
        if name in methods or not (isinstance(other, (str, Path)) or hasattr(other, "fit")):
            wanted = "classifiers of scikit-learn or paths of CSV files, under names that no method has"
            raise ArgumentError(f"Expected `others` to be {wanted}, but got {name!r}: {other!r}.")


def outcome_of(other: Any, datamodule: Any, seed: int, *, test: bool) -> Outcome:
    """Scores of the test or the validation data: of a file, or of a classifier fitted on the training examples.

    A classifier sees the tables that networks are trained on, each example as often as it likes. Its ``random_state``
    is ``seed``.
    """
    from sklearn.base import clone

    datamodule.setup("fit")
    datamodule.setup("test")
    loader = datamodule.test_dataloader() if test else datamodule.val_dataloader()
    inputs, target = _table(loader)
    made, start = Outcome(), time.perf_counter()
    if isinstance(other, (str, Path)):
        scores = _read(Path(other), len(target))
    else:
        parts = [_table(own)[0] for own in datamodule.scoring_dataloaders()]
        model = clone(other)
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        model.fit(np.concatenate(parts), np.repeat([1, 0], [len(own) for own in parts]))
        scores = (
            model.predict_proba(inputs)[:, 1] if hasattr(model, "predict_proba") else model.decision_function(inputs)
        )
        made.optimizer, made.examples = type(other).__name__, sum(map(len, parts))
        made.seconds = time.perf_counter() - start
    known, groups = target >= 0, getattr(loader, "groups", None)
    made.scores, made.target = torch.as_tensor(scores, dtype=torch.float64)[known, None], target[known, None]
    made.groups = None if groups is None else as_groups(torch.as_tensor(groups)[known])
    return made


def _table(loader: Any) -> tuple[Any, Tensor]:
    """Inputs ``(N, d)`` and labels ``(N,)`` of all examples."""
    batches = list(loader)
    if any(not isinstance(b.inputs, Tensor) or b.inputs.ndim != 2 or b.target.ndim > 1 for b in batches):
        raise UnsupportedError("`others` takes tables, inputs `(N, d)` as one tensor, with one label.")
    inputs, target = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "target"))
    return inputs.numpy(), target.long()


def _read(path: Path, count: int) -> list[float]:
    """The scores of a file with the columns ``example_id``, 0 to ``count - 1``, and ``score``."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = {int(row["example_id"]): float(row["score"]) for row in csv.DictReader(file)}
        return [rows[k] for k in range(count)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        wanted = f"a CSV file with columns `example_id`, 0 to {count - 1}, and `score`"
        raise ArgumentError(
            f"`others`: expected {str(path)!r} to be {wanted}, but found {type(error).__name__} {error}."
        ) from None
