"""Checkpoints that ``torch.load(weights_only=True)`` can read: tensors, numbers, text, and containers of these.

Lightning reads checkpoints that way, but writes whatever it is given. Without a check, nobody would notice an
unreadable file until it is needed.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightning_tpauc.errors import CheckpointError

_READ_BACK = frozenset({type(None), bool, int, float, complex, str, bytes, Tensor, nn.Parameter, DTensor, torch.dtype})


def make_plain(checkpoint: dict[str, Any]) -> None:
    """Replace the entries of a checkpoint by their plain equivalents, in place.

    Raises:
        CheckpointError: if an entry has no plain equivalent; the message names it.

    Example:
        >>> from pathlib import PurePosixPath
        >>> checkpoint = {"callbacks": {"Mine": {"best": np.float64(0.5), "file": PurePosixPath("a/b")}}}
        >>> make_plain(checkpoint)
        >>> checkpoint
        {'callbacks': {'Mine': {'best': 0.5, 'file': 'a/b'}}}
    """
    checkpoint.pop("hparams_type", None)  # the class of configurations of omegaconf, which are saved as dictionaries
    for name in list(checkpoint):
        checkpoint[name] = plain(checkpoint[name], name)


def plain(value: Any, place: str) -> Any:
    """The plain equivalent of a value: the value itself if ``torch.load(weights_only=True)`` reads it.

    NumPy's numbers and arrays become numbers and tensors, paths text. Instances of subclasses of numbers, text and
    containers become instances of the base class.

    Raises:
        CheckpointError: if the value, or something that it contains, has no plain equivalent.
    """
    if type(value) in _READ_BACK:
        return value
    if isinstance(value, Mapping):
        pairs = [(plain(key, f"{place}, key"), plain(part, f"{place}[{key!r}]")) for key, part in value.items()]
        kept = type(value) in (dict, OrderedDict, Counter)
        same = kept and all(key is old and part is value[old] for (key, part), old in zip(pairs, value, strict=True))
        return value if same else (OrderedDict if type(value) is OrderedDict else dict)(pairs)
    if isinstance(value, (list, tuple, set, frozenset)) and not isinstance(value, torch.Size):
        parts = [plain(part, f"{place}[{k}]") for k, part in enumerate(value)]
        kind = next((base for base in (list, tuple) if isinstance(value, base)), set)
        same = type(value) is kind and all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else kind(parts)
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        numeric = value.dtype.kind in "biufc"
        native = value.astype(value.dtype.newbyteorder("=")) if numeric else value  # a copy in any case
        return torch.from_numpy(native) if numeric else plain(value.tolist(), place)
    if isinstance(value, (np.number, np.bool_)):
        return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[value.dtype.kind](value)
    bases: tuple[tuple[type, Any], ...] = (int, int), (float, float), (str, str.__str__), (PurePath, str)
    for base, converted in bases:
        if isinstance(value, base):
            return converted(value)
    if _is_read_back(value):
        return value
    raise CheckpointError(_refusal(value, place))


def _is_read_back(value: Any) -> bool:
    """Whether torch reads the value: it allows some more types, and the user may have allowed others."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception:  # pickling runs code of others, which may fail in any way
        return False
    return True


def _refusal(value: Any, place: str) -> str:
    remedy = "Save numbers, text, tensors, or lists and dictionaries of these"
    if "hyper_parameters['" in place:
        remedy = f"Leave it out with `self.save_hyperparameters(ignore=[{place.split(chr(39))[1]!r}])`"
    shown = "" if isinstance(value, nn.Module) else f" ({' '.join(repr(value).split())[:60]})"
    return (
        f"A checkpoint can't hold {place}: {type(value).__name__}{shown} is not read back by "
        f"`torch.load(weights_only=True)`. {remedy}."
    )
