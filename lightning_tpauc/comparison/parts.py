"""What a comparison asks of data: a validation set, both classes in what validates and tests, labels to train for."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_tpauc.errors import DataError
from lightning_tpauc.scoring.labels import Labels


def require_validation(datamodule: Any, labels: Labels | None = None) -> list[str]:
    """Check that there are validation data, which tell methods and settings apart.

    Returns:
        The names of the labels that lack a class there, of several labels.

    Raises:
        DataError: if there are none, or they lack a class.
    """
    loader = datamodule.val_dataloader()
    _require_both_classes(loader, "validation")
    if isinstance(loader, list) and not loader:
        msg = (
            "A comparison chooses weights and settings on validation data, but there are none: pass `val_dataset`, or "
            "split a part off with `val_fraction` or `folds`."
        )
        raise DataError(msg)
    targets = getattr(loader, "targets", None)
    if labels is None or targets is None:
        return []
    return [name for name, has_both in zip(labels.names, _have_both(targets), strict=True) if not has_both]


def has_test(datamodule: Any) -> bool:
    """Whether there is a test set.

    Raises:
        DataError: if it lacks a class.
    """
    datamodule.setup("test")
    try:
        loader = datamodule.test_dataloader()
    except (DataError, MisconfigurationException):
        return False
    _require_both_classes(loader, "test")
    return loader is not None


def _require_both_classes(loader: Any, name: str) -> None:
    """Raise :class:`DataError` if the labels of a loader are known and of one class alone."""
    targets = getattr(loader, "targets", None)
    if targets is None:  # a loader of one's own
        return
    if targets.ndim > 1:
        if not _have_both(targets).any():
            msg = (
                f"A comparison measures areas, which need both classes, but none of the {targets.shape[1]} labels has "
                f"a positive and a negative among the {len(targets)} examples of the {name} set. Pass one that has."
            )
            raise DataError(msg)
        return
    for value, kind in ((1, "positive"), (0, "negative")):
        if not (targets == value).any():
            msg = (
                f"A comparison measures areas, which need both classes, but the {name} set has no {kind} among its "
                f"{len(targets)} examples. Pass one that has, or split it off stratified (`val_fraction`, `folds`)."
            )
            raise DataError(msg)


def _have_both(targets: Any) -> Any:
    """Of each of several labels, whether a positive and a negative were measured."""
    return (targets == 1).any(0) & (targets == 0).any(0)
