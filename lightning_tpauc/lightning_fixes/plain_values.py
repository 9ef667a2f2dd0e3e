"""Checkpoints that ``torch.load(weights_only=True)`` can read: tensors, numbers, text, and containers of these.

Lightning reads checkpoints that way, but writes whatever it is given. Without a check, nobody would notice an
unreadable file until it is needed.
"""

from __future__ import annotations

import argparse
import io
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, MutableSequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightning_tpauc.errors import CheckpointError

_READ_BACK = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device}
)
_TENSORS = frozenset({Tensor, nn.Parameter, DTensor})
_MAPPINGS = frozenset({dict, OrderedDict, Counter})
_SEQUENCES = frozenset({list, tuple, set})
#: Types whose subclasses are converted to the type itself, such as members of an enumeration that are text as well.
_BASES: tuple[tuple[type, Any], ...] = ((int, int.__int__), (float, float.__float__), (str, str.__str__))
#: Ranges up to this length are written as lists.
_LONGEST_RANGE = 10_000
_HYPERPARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")


class _NoEquivalentError(Exception):
    """Raised for a value without a plain equivalent."""


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
    # the class of configurations of omegaconf, which are saved as dictionaries
    checkpoint.pop("hparams_type", None)
    for name in list(checkpoint):
        checkpoint[name] = plain(checkpoint[name], name)


def plain(value: Any, place: str) -> Any:
    """The plain equivalent of a value, which is the value itself if ``torch.load(weights_only=True)`` reads it.

    NumPy's numbers and arrays become numbers and tensors. Paths become text. Dataclasses and namespaces become
    dictionaries, and ranges become lists. Instances of subclasses of numbers, text and containers become instances of
    the base class.

    Raises:
        CheckpointError: if the value, or something that it contains, has no plain equivalent.
    """
    kind = type(value)
    if kind in _READ_BACK or kind in _TENSORS:
        return value
    if kind in _MAPPINGS:
        pairs = [(plain(k, f"{place}, key"), plain(v, f"{place}[{k!r}]")) for k, v in value.items()]
        same = all(k is old and v is value[old] for (k, v), old in zip(pairs, value, strict=True))
        return value if same else kind(pairs) if kind is not Counter else Counter(dict(pairs))
    if kind in _SEQUENCES:
        items = [plain(item, f"{place}[{k}]") for k, item in enumerate(value)]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else kind(items)
    try:
        return plain(_equivalent(value), place)
    except _NoEquivalentError:
        if _is_read_back(value):
            return value
        raise CheckpointError(_refusal(value, place)) from None


def _equivalent(value: Any) -> Any:
    """A value of another type that stands for this one; its parts may need equivalents as well."""
    if isinstance(value, (np.generic, np.ndarray)):
        return _from_numpy(value)
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return dict(vars(value))
    if isinstance(value, range) and len(value) <= _LONGEST_RANGE:
        return list(value)
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    return _container(value)


def _container(value: Any) -> Any:
    if isinstance(value, deque) and value.maxlen is not None:
        raise _NoEquivalentError
    if isinstance(value, (Mapping, defaultdict)):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return set(value)
    if isinstance(value, MutableSequence):
        return list(value)
    if isinstance(value, tuple):
        return tuple(value)
    raise _NoEquivalentError


def _from_numpy(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray) or (value.dtype.kind in "OVMm" and value.dtype != object):
        raise _NoEquivalentError  # tensors and lists have neither masks nor fields nor dates
    if isinstance(value, np.generic):
        number = value.item()
        if isinstance(number, np.generic):  # a long double
            raise _NoEquivalentError
        return number
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError):  # text, objects, or another order of bytes
        return value.tolist()


def _is_read_back(value: Any) -> bool:
    """Whether torch reads the value: it allows some more types, and the user may have allowed others."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling runs code of others, which may fail in any way
        return False
    return True


def _refusal(value: Any, place: str) -> str:
    name = place.split("['")[1].split("']")[0] if place.startswith(_HYPERPARAMETERS) and "['" in place else None
    remedy = (
        f"Leave it out with `self.save_hyperparameters(ignore=[{name!r}])`"
        if name is not None
        else "Save numbers, text, tensors, or lists and dictionaries of these"
    )
    shown = "" if isinstance(value, nn.Module) else f" ({' '.join(repr(value).split())[:60]})"
    hint = ", or pass its value" if isinstance(value, Enum) else ""
    return (
        f"A checkpoint can't hold {place}: {type(value).__name__}{shown} is not read back by "
        f"`torch.load(weights_only=True)`. {remedy}{hint}."
    )
