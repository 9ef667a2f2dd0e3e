"""Splitting molecules into training, validation and test set."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.data.core.splits import task_parts
from lightning_tpauc.data.core.targets import binary_labels
from lightning_tpauc.errors import ArgumentError


def scaffold_split(
    scaffolds: Sequence[Hashable], fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> tuple[list[int], list[int], list[int]]:
    """Deal whole scaffold groups to training, validation and test set, the largest groups first.

    This is the deterministic rule of MoleculeNet and OGB. Groups are sorted by size, largest first; of two groups of
    one size, the one whose first molecule comes later is first. A group goes to the training set unless that would
    exceed its fraction. Otherwise it goes to the validation set unless training and validation set together would
    exceed theirs. All other groups, with the rare scaffolds, go to the test set.

    Args:
        scaffolds: the scaffold of each of n molecules.
        fractions: shares of training, validation and test set; they add up to 1.

    Returns:
        Positions ``0 .. n - 1`` of the three parts, in the order in which they were dealt.

    Raises:
        ArgumentError: a fraction is negative, or they don't add up to 1.

    Example:
        >>> scaffold_split(["ring", "chain", "ring", "cage", "ring"], (0.6, 0.2, 0.2))
        ([0, 2, 4], [3], [1])
    """
    check_fractions(fractions)
    groups: dict[Hashable, list[int]] = {}
    for position, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(position)
    # With rounding, 0.8 * 10 + 0.1 * 10 may be slightly below 9.
    train_limit = fractions[0] * len(scaffolds) + 1e-9
    both_limit = (fractions[0] + fractions[1]) * len(scaffolds) + 1e-9
    train: list[int] = []
    val: list[int] = []
    test: list[int] = []
    for group in sorted(groups.values(), key=lambda members: (len(members), members[0]), reverse=True):
        if len(train) + len(group) <= train_limit:
            train += group
        elif len(train) + len(val) + len(group) <= both_limit:
            val += group
        else:
            test += group
    return train, val, test


def random_split(
    targets: Tensor, fractions: tuple[float, float, float], seed: int, names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle each class and cut it by the fractions, so that all parts keep the share of positives.

    Args:
        targets: int64 ``(n,)``, 0 or 1; of several tasks ``(n, K)``, nan where nothing was measured.
        fractions: shares of training, validation and test set; they add up to 1.
        seed: seed of the split.
        names: names of several tasks.

    Returns:
        Sorted int64 positions of the three parts.

    Raises:
        ArgumentError: a fraction is negative, or they don't add up to 1.
        DataError: several tasks can't have both classes in all parts.

    Example:
        >>> [len(part) for part in random_split(torch.arange(20) // 10, (0.8, 0.1, 0.1), seed=0)]
        [16, 2, 2]
    """
    check_fractions(fractions)
    if names is not None:
        cut = task_parts(binary_labels(targets), np.array(fractions), seed, tuple(names))
        train, val, test = map(torch.from_numpy, cut)
        return train, val, test
    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for label in (0, 1):
        members = (targets == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first, second = (round(share * len(members)) for share in (fractions[0], fractions[0] + fractions[1]))
        for part, piece in zip(parts, members.tensor_split((first, second)), strict=True):
            part.append(piece)
    train, val, test = (torch.cat(part).sort().values for part in parts)
    return train, val, test


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise :class:`ArgumentError` unless ``fractions`` are three numbers >= 0 that add up to 1."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-6:
        msg = f"Expected `fractions` to be three numbers >= 0 that add up to 1, but got {tuple(fractions)!r}."
        raise ArgumentError(msg)
