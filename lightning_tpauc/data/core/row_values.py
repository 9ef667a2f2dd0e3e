"""What users may say about each row beside its label: its group, its weight and its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lightning_tpauc.data.core.arrays import enumerated
from lightning_tpauc.data.core.datasets import Datasets
from lightning_tpauc.data.core.targets import as_array, label_of_item, stored_targets
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import DataError


def row_values(dataset: Any, given: Any, argument: str, name: str = "train_dataset") -> NDArray[Any]:
    """One value for each item of a data set.

    Args:
        dataset: map-style data set with n items.
        given: n values in the order of the items; or the name of an attribute of the data set, also inside a
            :class:`~torch.utils.data.Subset`, or of a key of its items, which are then read in one pass.
        argument: name of the argument in messages.
        name: name of the data set in messages.

    Returns:
        Array ``(n,)``.

    Raises:
        DataError: if nothing is found under the name, or if there is not one value for each item.

    Example:
        >>> row_values([{"x": 1.0, "patient": "a"}, {"x": 2.0, "patient": "b"}], "patient", "groups").tolist()
        ['a', 'b']
    """
    if isinstance(given, str):
        with seeded_items(0, 0):  # an augmentation that draws numbers leaves the generators as they were
            stored = stored_targets(dataset, given)
            values = as_array(_of_items(dataset, given, argument, name) if stored is None else stored, argument)
    else:
        values = as_array(given, argument)
    if values.ndim == 0 or values.size != len(values) or len(values) != len(dataset):
        msg = (
            f"Expected `{argument}` to have one value for each of the {len(dataset)} items of `{name}`, but got shape "
            f"{values.shape}."
        )
        raise DataError(msg)
    return values.reshape(-1)


def _of_items(dataset: Any, key: str, argument: str, name: str) -> list[Any]:
    rows = tqdm(range(len(dataset)), f"Reading {key!r} of {name}", leave=False, disable=None)  # on terminals
    try:
        return [label_of_item(dataset[row], key) for row in rows]
    except DataError as error:
        msg = (
            f"`{argument}={key!r}` is neither a column of the table, nor an attribute of `{name}`, nor a key of "
            f"its items. Pass an array with one value for each of the {len(dataset)} items."
        )
        raise DataError(msg) from error


def take_columns(
    datasets: Datasets, groups: Any, sample_weight: Any, targets: Any = None, ids: Any = None
) -> tuple[Datasets, Any, Any, Any, Any]:
    """Take out of all tables the columns that arguments name, so that they do not become inputs of the model.

    Args:
        datasets: as users give them.
        groups: the argument: an array, a name, which need not be that of a column, or ``None``.
        sample_weight: the argument.
        targets: the argument. A table that has the column of this name, or the columns of a list of names, becomes a
            pair of inputs and labels, but for a table to predict on.
        ids: the argument.

    Returns:
        The data sets without these columns, then the four arguments. ``groups`` and ``sample_weight`` become the
        training set's column if they were its name. ``targets`` becomes ``None`` if the training set was such a table.
        ``ids`` becomes the column of the data to predict on, or their index if it has that name; without ``ids`` the
        index is taken unless it just counts the rows.

    Example:
        >>> take_columns(Datasets(train=(np.zeros((2, 3)), [0, 1])), "patient", None)[1:]  # an array has no columns
        ('patient', None, None, None)
    """
    datasets, targets = _take_labels(datasets, targets)
    names = {given for given in (groups, sample_weight, ids) if isinstance(given, str)}
    taken: dict[str, dict[Any, Any]] = {}
    rest: dict[str, Any] = {}
    for part, dataset in datasets._asdict().items():
        table = _inputs_of(dataset)
        known = _columns(table)
        own = [name for name in known if name in names]
        if own:
            taken[part] = {name: table[name].to_numpy() for name in own}
            kept = table[[name for name in known if name not in names]]
            rest[part] = kept if table is dataset else (kept, dataset[1])
    found = taken.get("train", {})
    groups, sample_weight = (found.get(v, v) if isinstance(v, str) else v for v in (groups, sample_weight))
    found_ids = taken.get("predict", {}).get(ids) if isinstance(ids, str) else None
    ids = _index_or(ids, _inputs_of(datasets.predict)) if found_ids is None else found_ids
    return datasets._replace(**rest), groups, sample_weight, targets, ids


def _inputs_of(dataset: Any) -> Any:
    return dataset[0] if isinstance(dataset, (tuple, list)) and len(dataset) == 2 else dataset


def _index_or(ids: Any, table: Any) -> Any:
    """The index of a table if ``ids`` names it, or if there are no ``ids`` and it does not just count; else ``ids``."""
    index: Any = getattr(table, "index", None)
    if not hasattr(index, "equals"):  # a list has a method of this name
        return ids
    labels = index.to_numpy()
    if ids is None:
        return None if np.array_equal(labels, np.arange(len(labels))) else labels
    return labels if isinstance(ids, str) and index.name == ids else ids


def _columns(table: Any) -> list[Any]:
    return list(table.columns) if hasattr(table, "columns") and hasattr(table, "to_numpy") else []


def _take_labels(datasets: Datasets, targets: Any) -> tuple[Datasets, Any]:
    """Tables with the columns of labels that ``targets`` names, as pairs of inputs and labels."""
    several = isinstance(targets, (list, tuple)) and all(isinstance(name, str) for name in targets)
    names = list(targets) if several else [targets] if isinstance(targets, str) else []
    made: dict[str, Any] = {}
    for part, table in datasets._asdict().items():
        known = _columns(table)
        absent = [name for name in names if name not in known]
        if known and absent and part in ("train", "val", "test"):
            msg = (
                f"`targets={targets!r}` names columns of labels, but `{part}_dataset` has no {absent[0]!r}: it has "
                f"{enumerated(known)}."
            )
            raise DataError(msg)
        if names and known and not absent:
            inputs = table[[name for name in known if name not in names]]
            made[part] = inputs if part == "predict" else (inputs, table[list(targets) if several else targets])
    return datasets._replace(**made), None if "train" in made else targets


def as_groups(values: NDArray[Any]) -> NDArray[np.int64]:
    """Groups as numbers from 0 on.

    Raises:
        DataError: if a group is missing.

    Example:
        >>> as_groups(np.array(["b", "a", "b"])).tolist()
        [1, 0, 1]
    """
    entries: Mapping[Any, int] | None = None
    if values.dtype.kind == "O":
        missing = [value is None or type(value).__name__ == "NAType" or value != value for value in values.tolist()]
        entries = {value: number for number, value in enumerate(dict.fromkeys(values.tolist()))}
    else:
        missing = (values != values).tolist()
    if any(missing):
        msg = (
            f"`groups` has no value for row {missing.index(True)}, and for {sum(missing)} of {len(values)} rows in "
            "all: give each of them a group of its own, or drop them."
        )
        raise DataError(msg)
    if entries is not None:
        return np.array([entries[value] for value in values.tolist()], dtype=np.int64)
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def as_weights(values: NDArray[Any]) -> NDArray[np.float64]:
    """Weights as float64.

    Raises:
        DataError: if a weight is below 0, not finite or no number.

    Example:
        >>> as_weights(np.array([1, 0, 2]))
        array([1., 0., 2.])
    """
    try:
        weights = values.astype(np.float64)
    except (TypeError, ValueError):
        weights = np.full(len(values), np.nan)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        msg = (
            f"Expected `sample_weight` to be finite numbers of at least 0, but row {wrong[0]} has "
            f"{values[wrong[0] :][:1].tolist()[0]!r}, and {wrong.size} of {len(values)} rows are wrong."
        )
        raise DataError(msg)
    return weights
