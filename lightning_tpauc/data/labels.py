"""The labels of a data set, and what else is said of each row: where it is found, and whether it is right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from tqdm import tqdm

from lightning_tpauc.data.seeding import Indices, seeded_items
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional import checks

#: Attributes of data sets, and keys of items, that are searched for labels in this order.
NAMES = ("targets", "labels", "y", "target", "label")
#: Stands for "nothing found"; ``None`` can't, since it is a label that is missing.
NOTHING = object()
#: Number of items of each class whose own labels are compared with the stored ones.
_COMPARED = 4


# ---------------------------------------------------------------- finding labels


def find_targets(dataset: Any, targets: Any = None, name: str = "train_dataset") -> NDArray[np.int8]:
    """Labels of all items of a map-style data set: the first of these that there are.

    1. ``targets``, if it is an array;
    2. ``targets``, if it is the name of an attribute of the data set or of a key of its items, or a list of such names;
    3. the attribute ``targets``, ``labels``, ``y``, ``target`` or ``label``, after the data set's ``target_transform``;
    4. the last tensor of a ``TensorDataset``;
    5. the labels of all items, read in one pass with a progress bar.

    A function as ``targets`` makes the label of each of those that 3 to 5 find. Data sets inside others are searched.

    Returns:
        int8 array ``(n,)`` of 0 and 1, or ``(n, K)`` of 0, 1 and -1; see :func:`binary_labels`.

    Raises:
        DataError: if no labels are found, if they are not 0 and 1, or if they differ from those of a few items.

    Example:
        >>> find_targets(TensorDataset(torch.zeros(3, 2), torch.tensor([0.0, 1.0, 0.0])))
        array([0, 1, 0], dtype=int8)
        >>> find_targets([("words", "dead"), ("words", "alive")], lambda label: label == "dead")
        array([1, 0], dtype=int8)
    """
    keys, given = label_keys(targets), are_labels(targets)
    absent = (
        f"Found no label in the items of `{name}` (looked for {', '.join(map(repr, keys or NAMES))}). Pass a pair "
        "`(x, y)`, `targets=array_of_labels`, or `targets='name'` of the attribute or key that holds them."
    )
    found = targets if given else ruled(find_values(dataset, keys, f"the labels of {name}", absent), targets)
    labels = binary_labels(found, name)
    if len(labels) != len(dataset):
        size = f"each of the {len(dataset)} items of `{name}`"
        raise DataError(f"Expected one label for {size}, but got {len(labels)} labels.")
    if not given and (differing := disagreement(dataset, labels, targets)):
        raise DataError(
            f"`{name}` keeps other labels than its items have: {differing}. Pass the right ones as "
            "`targets=array_of_labels`, or let the items end with the label."
        )
    return labels


def are_labels(targets: Any) -> bool:
    """Whether the argument ``targets`` holds the labels of one data set, and is no name and no function."""
    return targets is not None and not callable(targets) and label_keys(targets) is None


def label_keys(targets: Any) -> tuple[str, ...] | None:
    """The names that the argument ``targets`` gives: one or several; ``None`` if it gives none."""
    if isinstance(targets, str):
        return (targets,)
    names = isinstance(targets, (list, tuple)) and len(targets) and all(isinstance(name, str) for name in targets)
    return tuple(targets) if names and len(set(targets)) == len(targets) else None  # texts that repeat are labels


class OneVsRest:
    """Turns one column with K classes into K labels, each class against all others: for the argument ``targets``.

    A model has an output for each class. Validation and test log ``accuracy`` beside the areas: how often the class
    whose score is furthest above its threshold is the right one.

    Args:
        classes: the classes in the order of the outputs, numbers or text; a number K stands for ``0 .. K - 1``.

    Raises:
        ArgumentError: if there are fewer than two classes, or one comes twice.
        DataError: if an example has another class.

    Example:
        >>> from lightning_tpauc import PosNegDataModule
        >>> x, y = torch.randn(90, 4), ["cat", "dog", "fish"] * 30
        >>> data = PosNegDataModule((x, y), targets=OneVsRest(["cat", "dog", "fish"]))
        >>> data.setup("fit")
        >>> data.label_names, data.num_positives
        (('cat', 'dog', 'fish'), (30, 30, 30))
    """

    def __init__(self, classes: Sequence[Any] | int) -> None:
        self.classes = tuple(range(classes) if checks.is_whole(classes) else classes)  # type: ignore[arg-type]
        if len({*self.classes}) < max(2, len(self.classes)):
            raise ArgumentError(f"Expected `classes` to be two or more, all different, but got {classes!r}.")

    def __call__(self, label: Any) -> list[int]:
        """1 in the place of the class, else 0."""
        label = label.item() if hasattr(label, "item") else label
        if label not in self.classes:
            known = ", ".join(map(repr, self.classes))
            raise DataError(f"Expected labels to be one of the classes {known}, but found {label!r}.")
        return [int(label == own) for own in self.classes]


def ruled(labels: Any, targets: Any) -> Any:
    """Labels after the function that ``targets`` may be."""
    if not callable(targets):
        return labels
    return [targets(label) for label in (labels.tolist() if hasattr(labels, "tolist") else labels)]


def disagreement(dataset: Any, labels: NDArray[np.int8], targets: Any) -> str | None:
    """Where labels differ from those of a few items of each class; ``None`` if they agree, or items have none."""
    keys, rows = label_keys(targets), rows_of_both_classes(labels, _COMPARED)
    with seeded_items(0, 0):  # augmentations and target transforms may draw random numbers
        stored = stored_values(dataset, keys)
        own = labels if stored is None else numbers_of(ruled(stored, targets))
        if own.shape == labels.shape:  # those that differ, too
            rows = np.append(np.flatnonzero(own != labels)[:1], rows)
        entries = [entry_of(dataset[int(row)], None if keys and keys[0] in NAMES else keys) for row in rows]
    if not entries or any(entry is NOTHING for entry in entries):
        return None
    for row, entry in zip(rows, entries, strict=True):
        label, own = np.where(labels[row] < 0, np.nan, labels[row]).reshape(-1), numbers_of(ruled([entry], targets)[0])
        # a one-hot code, or another label beside this one, has more numbers: it contradicts nobody
        if own.shape == label.shape and not same_numbers(own, label):
            shown = repr(own[0].item()) if len(own) == 1 else str(own.tolist())
            return f"{labels[row]} for item {row}, which itself has {shown}"
    return None


def scrambled(dataset: Any, labels: NDArray[np.int8]) -> str | None:
    """Two items with one label of their own and two here, as in another order; ``None`` if labels recode their own."""
    seen = dict[str, int]()
    with seeded_items(0, 0):
        kept = None if (stored := stored_values(dataset)) is None else as_array(stored)
        for row in rows_of_both_classes(labels, 4 * _COMPARED).tolist():
            own = entry_of(dataset[row], None) if kept is None else kept[row]
            first = row if own is NOTHING else seen.setdefault(str(numbers_of(own)), row)
            if (labels[first] != labels[row]).any():
                return f"items {first} and {row} have the same label, {own}, but not in `targets`"
    return None


def numbers_of(entry: Any) -> NDArray[Any]:
    """The numbers in an entry of an item, flat; its type where it holds none."""
    try:
        return _as_numbers(as_array(entry).reshape(-1))
    except DataError:
        return np.array([type(entry).__name__])


def same_numbers(one: Any, other: Any) -> bool:
    """Whether two entries hold the same numbers or texts in the same order; what is missing counts as equal."""
    one, other = numbers_of(one), numbers_of(other)
    return one.shape == other.shape and bool(
        ((one == other) | (checks.is_missing(one) & checks.is_missing(other))).all()
    )


def rows_of_both_classes(labels: NDArray[np.int8], count: int) -> Indices:
    """Up to ``count`` rows of each class, evenly spread."""
    some = labels if labels.ndim == 1 else labels.max(axis=1, initial=0)
    classes = [np.flatnonzero(some == value) for value in (0, 1)]
    return np.concatenate([c[np.linspace(0, len(c) - 1, min(count, len(c)), dtype=np.int64)] for c in classes])


def find_values(dataset: Any, keys: Sequence[str] | None, what: str, absent: str) -> Any:
    """What a data set stores under names, or else what its items have there; refused by ``absent`` if one has none."""
    with seeded_items(0, 0):  # augmentations and target transforms may draw random numbers
        stored, found = stored_values(dataset, keys), list[Any]()
        if stored is not None:
            return stored
        for row in tqdm(range(len(dataset)), f"Reading {what}", leave=False, disable=None):  # on terminals
            found.append(entry_of(dataset[row], keys))
            if found[-1] is NOTHING:
                raise DataError(absent)
        return found


def stored_values(dataset: Any, keys: Sequence[str] | None = None) -> Any:
    """Values that a data set stores under names, unchecked; ``None`` if it stores none. ``keys=None``: its labels."""
    inner, rows = underlying(dataset)
    if rows is not None:
        stored = stored_values(inner, keys)
        return None if stored is None else as_array(stored)[rows]
    if isinstance(dataset, ConcatDataset):
        parts = [stored_values(part, keys) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([_in_columns(as_array(p), "") for p in parts])
    if keys is not None and len(keys) > 1:
        columns = [stored_values(dataset, [key]) for key in keys]
        return None if any(column is None for column in columns) else np.stack([as_array(c) for c in columns], axis=1)
    for attribute in keys or NAMES:
        found: Any = getattr(dataset, attribute, None)
        is_array = isinstance(found, (list, tuple)) or hasattr(found, "to_numpy") or getattr(found, "ndim", 0) > 0
        # `y` of a data set of graphs may hold one value per node.
        if is_array and len(found) == len(dataset):
            # as the items have them: data sets like torchvision's transform a label when an item is read
            transform = getattr(dataset, "target_transform", None) if attribute in NAMES else None
            plain = found.tolist() if isinstance(found, Tensor) and found.ndim == 1 else found
            return [transform(label) for label in plain] if callable(transform) else found
    return dataset.tensors[-1] if isinstance(dataset, TensorDataset) and keys is None and dataset.tensors[1:] else None


def label_names(dataset: Any, targets: Any, count: int) -> tuple[str, ...]:
    """The names of several labels: the keys that ``targets`` lists, columns of a table, the data set's ``label_names``.

    Labels without names are called by their numbers.
    """
    keys, (inner, _) = label_keys(targets), underlying(dataset)
    if isinstance(inner, ConcatDataset):
        return label_names(inner.datasets[0], targets, count)
    if isinstance(targets, OneVsRest):
        return tuple(map(str, targets.classes))
    places: list[Any] = [targets, *(getattr(inner, name, None) for name in keys or NAMES)]
    tables = (place.columns for place in places if hasattr(place, "columns"))
    found: Any = keys if keys and len(keys) > 1 else next(tables, getattr(inner, "label_names", None))
    return tuple(map(str, range(count) if found is None or len(found) != count else found))


def entry_of(item: Any, keys: Sequence[str] | None) -> Any:
    """The label of one item, or what it has under keys; :data:`NOTHING` if it has none."""
    if isinstance(item, (tuple, list)):
        return item[-1] if len(item) > 1 and keys is None else NOTHING
    if keys is not None and len(keys) > 1:
        entries = [entry_of(item, [key]) for key in keys]
        return NOTHING if any(entry is NOTHING for entry in entries) else entries
    for key in keys or NAMES:
        if isinstance(item, Mapping):
            if key in item:
                return item[key]
        elif not isinstance(item, Tensor) and getattr(item, key, None) is not None:
            return getattr(item, key)
    return NOTHING


# ---------------------------------------------------------------- labels as numbers


def is_table(x: Any) -> bool:
    """Whether this is a table of pandas or polars, or one like them."""
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def as_array(values: Any, name: str = "targets") -> NDArray[Any]:
    """Labels of any container as an array, in their order. Masked entries become nan."""
    if isinstance(values, Tensor):
        dense = values.detach().cpu().to_dense()
        return (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    try:
        if isinstance(values, (list, tuple)) and any(isinstance(value, (Tensor, np.ndarray)) for value in values):
            return np.stack([as_array(value).squeeze() for value in values])
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:  # rows of different lengths
        raise DataError(f"Expected one label per example in `{name}`, but it makes no array: {error}") from error


def item_label(label: Any) -> Any:
    """One entry of stored labels as an item's label: a number, or a tensor of several labels, nan if not measured."""
    array = as_array(label)
    if array.size == 1:
        return int(array.item()) if array.dtype.kind in "buif" else array.item()
    return torch.from_numpy(_as_numbers(array.ravel()).copy())


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as floats; None and other signs of a missing label become nan. Unchanged if an object is no number."""
    if values.dtype.kind != "O" or any(isinstance(value, (str, bytes)) for value in values):
        return values  # text is no number, even if it looks like one
    try:
        return np.where(checks.is_missing(values), np.nan, values).astype(np.float64)
    except (TypeError, ValueError):
        return values


def binary_labels(values: Any, name: str = "targets") -> NDArray[np.int8]:
    """Check labels: int8 ``(n,)`` of 0 and 1; of several labels ``(n, K)``, -1 for nan, None and masked entries."""
    labels = _in_columns(as_array(values, name), name)
    labels = _as_numbers(labels.ravel()).reshape(labels.shape)
    missing = checks.is_missing(labels)
    if labels.ndim == 1 and missing.any():
        absent = f"{int(missing.sum())} of {labels.size} are nan. Drop unlabelled examples first, by a Subset"
        raise DataError(f"Expected labels 0 and 1 in `{name}`, but {absent}.")
    numbers = labels.dtype.kind in "buif"
    wrong = ~missing & (labels != 0) & (labels != 1) if numbers else ~missing
    if wrong.any():
        _refuse(labels, wrong, getattr(values, "columns", None), name, numbers=numbers)
    return np.where(missing, -1, labels).astype(np.int8)


def _in_columns(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Labels of shape ``(n,)`` or ``(n, K)``, without further axes of length 1."""
    wide = [size for size in labels.shape[1:] if size != 1]
    if labels.ndim == 0 or len(wide) > 1 or 0 in wide:
        raise DataError(
            f"Expected one label per example in `{name}`, shape (n,), or K labels, (n, K), but got shape "
            f"{labels.shape}. Choose columns, for instance `targets=labels[:, 0]`."
        )
    return labels.reshape(len(labels), *wide)


def _refuse(labels: NDArray[Any], wrong: NDArray[np.bool_], columns: Any, name: str, *, numbers: bool) -> None:
    """Say which labels are neither 0 nor 1, and how to make these."""
    where, remedy = "", "Pass 0 and 1, and nan where a label was not measured."
    if labels.ndim == 2:
        number = int(wrong.any(axis=0).argmax())
        where = f" in column {number if columns is None else repr(columns[number])}"
        labels = labels[wrong[:, number], number]
    counts = Counter(labels.tolist())
    found = sorted(counts) if numbers else sorted(counts, key=lambda value: -counts[value])  # the rarest is last
    if not where:
        one = repr(found[-1])
        remedy = f"Choose the positive class: `targets=(y == {one})`, or `targets=lambda label: label == {one}`. "
        remedy += f"A column that `targets` names has 0 and 1 by `table[name] = table[name] == {one}`, in all tables."
        remedy += " For each against the rest: `targets=lightning_tpauc.data.OneVsRest(classes)`." * (len(found) > 2)
    shown = ("" if numbers else f"{labels.dtype} ") + ", ".join(map(repr, found[:5])) + ", ..." * (len(found) > 5)
    raise DataError(f"Expected labels 0 and 1 in `{name}`, but found {shown}{where}. {remedy}")


# ---------------------------------------------------------------- groups, weights and ids


def row_values(dataset: Any, given: Any, argument: str, name: str = "train_dataset") -> NDArray[Any]:
    """One value for each item of a data set, ``(n,)``: those given, or those that it or its items have under a name.

    Groups are numbered from 0 on, and weights are float64.
    """
    if isinstance(given, str):
        absent = (
            f"`{argument}={given!r}` is neither a column of the table, nor an attribute of `{name}`, nor a key of its "
            f"items. Pass an array with one value for each of the {len(dataset)} items."
        )
        given = find_values(dataset, [given], f"{given!r} of {name}", absent)
    if getattr(given, "nlevels", 1) > 1:  # an index of pandas
        given = [f"({', '.join(map(str, entry))})" for entry in given]
    values = as_array(given, argument)
    if values.shape not in ((len(dataset),), (len(dataset), 1)):
        size = f"{len(dataset)} values, one per item of `{name}`"
        raise DataError(f"Expected `{argument}` to have {size}, not shape {values.shape}.")
    convert = {"groups": lambda given: checks.as_groups(given).numpy(), "sample_weight": as_weights}.get(
        argument, np.asarray
    )
    return convert(values.reshape(-1))


def as_weights(values: NDArray[Any]) -> NDArray[np.float64]:
    """Weights as float64; refused if one is below 0, not finite or no number."""
    numbers = _as_numbers(values)
    weights = numbers.astype(np.float64) if numbers.dtype.kind in "buif" else np.full(len(values), np.nan)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise DataError(
            f"Expected `sample_weight` to be finite numbers of at least 0, but row {wrong.argmax()} has "
            f"{values.tolist()[wrong.argmax()]!r}, and {wrong.sum()} of {len(values)} rows are wrong."
        )
    return weights


# ---------------------------------------------------------------- positions


def underlying(dataset: Any, name: str = "train_dataset") -> tuple[Any, Indices | None]:
    """What a data set is a subset of, itself no subset, and the positions there from 0 on. A mask is refused."""
    rows: Indices | None = None
    while isinstance(dataset, Subset):
        own, inner = as_array(dataset.indices), dataset.dataset
        if own.dtype.kind == "b":
            raise DataError(f"Subset in `{name}` has a mask as indices, no positions: pass `np.flatnonzero(mask)`.")
        own = np.where(own < 0, own + len(inner), own).astype(np.int64)  # type: ignore[arg-type]  # torch's have one
        rows, dataset = own if rows is None else own[rows], inner
    return dataset, rows


def check_positions(dataset: Any, name: str = "train_dataset") -> None:
    """Check the indices of subsets, also of those inside, by :func:`underlying`."""
    inner, _ = underlying(dataset, name)
    for part in inner.datasets if isinstance(inner, ConcatDataset) else ():
        check_positions(part, name)


def check_loader(loader: Any) -> None:
    """Check what a user gave for a data loader: an array or table is refused, and so are wrong indices inside."""
    if isinstance(loader, (Tensor, np.ndarray)) or is_table(loader):
        remedy = "pass `datamodule=PosNegDataModule(predict_dataset=data)`, or `test_dataset` or `val_dataset`"
        raise DataError(f"A {type(loader).__name__} is no data loader: {remedy}.")
    check_positions(getattr(loader, "dataset", None), "the data loader")
