"""Advice on tables whose columns have scales that a linear layer can't work with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: A column that varies by so much more than the one in the middle hides the others.
_UNEVEN = 100.0
#: A column so far from 0, in its standard deviations, is nearly a constant to the model.
_FAR = 20.0


def uneven_columns(inputs: Any, model: nn.Module) -> str | None:
    """Advice if columns of a batch should be standardised; ``None`` if not, or if the inputs are no table of floats.

    Args:
        inputs: of a batch; a floating tensor ``(N, D)`` is a table.
        model: reads the table itself if its first layer with parameters or buffers is linear; others may scale it.

    Example:
        >>> age_and_income = torch.tensor([[20.0, 1e6], [30.0, 1e5], [40.0, 5e5]])
        >>> uneven_columns(age_and_income / age_and_income.std(0), nn.Linear(2, 1)) is None
        True
        >>> uneven_columns(age_and_income, nn.Linear(2, 1)).partition(",")[0]
        'Column 1 of the inputs has a standard deviation of 4.5e+05'
    """
    table = isinstance(inputs, Tensor) and inputs.layout == torch.strided and inputs.is_floating_point()
    if not table or inputs.ndim != 2 or len(inputs) < 2 or not _read_as_it_is(model, inputs.shape[1]):
        return None
    values = inputs.detach().cpu().double()
    deviations = values.std(dim=0)
    varies = (deviations > 0) & deviations.isfinite()
    if not bool(varies.any()):
        return None
    middle = float(deviations[varies].median())
    widest = int(deviations.where(varies, 0.0).argmax())
    remedy = "Standardise the columns, as scikit-learn's StandardScaler does, fitted to the training rows."
    if float(deviations[widest]) >= _UNEVEN * middle:
        return (
            f"Column {widest} of the inputs has a standard deviation of {float(deviations[widest]):.2g}, most others "
            f"of {middle:.2g} or less: the model hardly sees those. {remedy}"
        )
    counted = varies & ((values != values.amin(dim=0)) & (values != values.amax(dim=0))).any(dim=0)  # not two values
    distance = (values.mean(dim=0).abs() / deviations).where(counted, 0.0)
    farthest = int(distance.argmax())
    if float(distance[farthest]) < _FAR:
        return None
    return (
        f"Column {farthest} of the inputs lies at {float(values[:, farthest].mean()):.3g} with a standard deviation of "
        f"{float(deviations[farthest]):.2g}: it is nearly a constant to the model. {remedy}"
    )


def _read_as_it_is(model: nn.Module, num_columns: int) -> bool:
    """Whether a linear layer reads so many columns, and no layer before it has parameters, means or scales."""
    first = next((each for each in model.modules() if [*each.parameters(False), *each.buffers(False)]), None)
    return isinstance(first, nn.Linear) and first.in_features == num_columns
