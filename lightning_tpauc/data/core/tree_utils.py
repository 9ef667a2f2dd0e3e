"""Collated inputs as trees of tensors: joins and cuts them, counts examples, and tells labels from inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import DataError


def join_inputs(parts: Sequence[Any]) -> Any:
    """Concatenate collated inputs along the examples.

    Args:
        parts: tensors, or tuples, lists or mappings of these, all of one structure.

    Raises:
        DataError: if structures or shapes differ, or something else than tensors is in them.

    Example:
        >>> join_inputs([torch.zeros(1, 2), torch.ones(2, 2)]).shape
        torch.Size([3, 2])
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    try:
        if isinstance(first, Tensor):
            return torch.cat(list(parts))
        if isinstance(first, Mapping):
            if {frozenset(part) for part in parts} != {frozenset(first)}:
                raise inputs_differ(parts)
            return {key: join_inputs([part[key] for part in parts]) for key in first}
        if isinstance(first, (tuple, list)):
            joined = [join_inputs(entries) for entries in zip(*parts, strict=True)]
            return tuple(joined) if isinstance(first, tuple) else joined
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise inputs_differ(parts) from error
    raise inputs_differ(parts)


def cut_inputs(inputs: Any, part: slice | int) -> Any:
    """A slice of the examples, or one example.

    Example:
        >>> cut_inputs({"x": torch.arange(4)}, slice(1, 3))
        {'x': tensor([1, 2])}
    """
    return _mapped(inputs, lambda tensor: tensor[part])


def as_tensors(inputs: Any) -> Any:
    """Turn arrays into tensors that share their memory.

    Example:
        >>> as_tensors((np.arange(2), torch.zeros(2)))
        (tensor([0, 1]), tensor([0., 0.]))
    """
    return _mapped(inputs, torch.as_tensor)


def num_examples(inputs: Any) -> int:
    """Length of the first axis.

    Raises:
        DataError: if the inputs are not tensors or arrays with a first axis.

    Example:
        >>> num_examples((torch.zeros(3, 2), torch.zeros(3)))
        3
    """
    while isinstance(inputs, (Mapping, tuple, list)) and len(inputs):
        inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs))
    if not isinstance(inputs, (Tensor, np.ndarray)) or inputs.ndim == 0:
        raise _no_block(inputs)
    return len(inputs)


def _mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _mapped(value, change) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(_mapped(value, change) for value in inputs)
    if isinstance(inputs, (Tensor, np.ndarray)):
        return change(inputs)
    raise _no_block(inputs)


def _no_block(inputs: Any) -> DataError:
    return DataError(
        f"Expected a block of negatives to be a tensor, an array, or a tuple or mapping of these, but got "
        f"{_described(inputs)}. Yield single examples and leave out `blocks=True`."
    )


def inputs_differ(parts: Sequence[Any]) -> DataError:
    """The error for inputs of positives and negatives that can't be put into one batch.

    Example:
        >>> str(inputs_differ([torch.zeros(2), (1, 2, 3)])).split("but got ")[1][:51]
        'a float32 tensor of shape (2,) and a tuple of 3. Le'
    """
    shown = " and ".join(dict.fromkeys(_described(part) for part in parts))
    return DataError(
        f"Expected the inputs of positives and negatives to be of one kind, but got {shown}. Let the stream of "
        "negatives yield what `train_dataset` has as inputs."
    )


def _described(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"a {str(inputs.dtype).removeprefix('torch.')} tensor of shape {tuple(inputs.shape)}"
    if isinstance(inputs, Mapping):
        return f"a mapping with {sorted(map(str, inputs))}"
    if isinstance(inputs, (tuple, list)):
        return f"a tuple of {len(inputs)}"
    return f"a {type(inputs).__name__}"


def layout(inputs: Any) -> Any:
    """The kinds of collated inputs, as a string or a list of strings, which a checkpoint can hold.

    Example:
        >>> import torch
        >>> layout((torch.zeros(2, 3), {"age": torch.zeros(2)}, ["a", "b"]))
        ['tensor', 'mapping', 'words']
    """
    if isinstance(inputs, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return "tensor"  # Numbers are collated to tensors.
    if isinstance(inputs, Mapping):
        return "mapping"
    if isinstance(inputs, str):
        return "words"
    if isinstance(inputs, (tuple, list)):
        return "words" if inputs and all(isinstance(entry, str) for entry in inputs) else [layout(e) for e in inputs]
    return type(inputs).__name__.removesuffix("Batch")  # PyG collates Data to a DataBatch.


def without_label(entries: Any) -> Any:
    """The inputs of an item or batch that ends with the label: ``(a, b, y)`` gives ``(a, b)``, and ``(a, y)`` gives a.

    Example:
        >>> without_label([1, 2, 0]), without_label([1, 0])
        ((1, 2), 1)
    """
    return entries[0] if len(entries) == 2 else tuple(entries[:-1])


def has_label(entries: Any, known: Any) -> bool | None:
    """Whether the last of several entries is a label; ``None`` if it is unknown.

    Args:
        entries: tuple or list.
        known: the :func:`layout` of the inputs that the model was trained on; ``None`` if that is unknown.

    Example:
        >>> import torch
        >>> ids, mask, y = torch.zeros(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
        >>> [has_label(e, ["tensor", "tensor"]) for e in ((ids, mask), (ids, mask, y))], has_label((ids, mask), None)
        ([False, True], None)
    """
    if known is not None and len(entries) > 1 and layout(without_label(entries)) == known:
        return True
    if known is not None and (layout(entries) == known or (len(entries) == 1 and layout(entries[0]) == known)):
        return False
    return None
