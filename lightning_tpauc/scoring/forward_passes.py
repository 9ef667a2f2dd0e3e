"""Forward passes outside Lightning's loops, in which batches reach the model as they do in its steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lightning_tpauc.errors import ArgumentError, TPAUCError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

__all__ = ("device_batches", "explained_dtypes")


#: Seconds after which a pass shows how far it is.
DELAY = 2.0


def device_batches(
    module: LightningModule, loader: Iterable[Any], title: str, total: int | None = None
) -> Iterator[Any]:
    """Yield batches as steps get them: in the precision's dtype, through the transfer hooks, on the device.

    The caller works on each batch in the precision plugin's context, which includes mixed precision. A bar shows on a
    terminal how far it is, unless the Trainer shows none.

    Args:
        module: attached to a Trainer.
        loader: yields batches on the host.
        title: what the bar is called.
        total: number of batches; ``None`` asks the loader.
    """
    trainer = module.trainer
    hidden = not trainer.is_global_zero or trainer.progress_bar_callback is None
    # a bar that is disabled by None shows on terminals alone
    how: dict[str, Any] = {"delay": DELAY, "leave": False, "disable": hidden or None}
    for host_batch in tqdm(loader, desc=title, total=total, **how):
        batch = trainer.precision_plugin.convert_input(host_batch)
        batch = module._on_before_batch_transfer(batch)
        batch = trainer.strategy.batch_to_device(batch)
        with trainer.precision_plugin.forward_context():
            yield batch


@contextmanager
def explained_dtypes(inputs: Any, model: nn.Module) -> Iterator[None]:
    """Explain the error if the model fails because its inputs and its weights differ in dtype.

    Args:
        inputs: what the model is called with.
        model: has the weights.

    Raises:
        ArgumentError: instead of torch's RuntimeError.

    Example:
        >>> import torch
        >>> with explained_dtypes(torch.zeros(2), nn.Linear(2, 1)):
        ...     pass
    """
    try:
        yield
    except RuntimeError as error:
        dtypes = {tensor.dtype for tensor in _tensors(inputs)}
        weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        if (
            isinstance(error, TPAUCError)
            or dtypes <= {weights}
            or not re.search(r"dtype|[a-z] type|implemented for '", str(error))
        ):
            raise
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        wider = ", or train with `Trainer(precision='64-true')`" if dtypes == {torch.float64} else ""
        msg = (
            f"The model can't compute with these inputs: {error}. They are {found} and its weights "
            f"{str(weights).removeprefix('torch.')}. Convert them, for instance with `x.float()`{wider}."
        )
        raise ArgumentError(msg) from error


def _tensors(inputs: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and mappings."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, (Mapping, list, tuple)):
        for part in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _tensors(part)
