"""Checkpoint files: written whole or not at all, readable with ``weights_only=True``, and refused in one line.

Lightning reads checkpoints with ``torch.load(weights_only=True)``, but writes whatever it is given. Without a check,
nobody would notice an unreadable file until it is needed.
"""

import io
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from typing_extensions import override

from lightning_tpauc.distributed import assign
from lightning_tpauc.errors import CheckpointError, MissingCheckpointError
from lightning_tpauc.files import replacing

#: How torch names the class that ``weights_only=True`` refuses.
_UNSAFE = re.compile(r"(?:GLOBAL |class )([\w.]+)")
_READ_BACK = frozenset({type(None), bool, int, float, complex, str, bytes, Tensor, nn.Parameter, DTensor, torch.dtype})

T = TypeVar("T")

# ---------------------------------------------------------------- plain values


def make_plain(checkpoint: dict[str, Any]) -> None:
    """Replace the entries of a checkpoint by their plain equivalents, in place.

    Raises:
        CheckpointError: if an entry has no plain equivalent; the message names it.
    """
    checkpoint.pop("hparams_type", None)  # the class of configurations of omegaconf, which are saved as dictionaries
    checkpoint.update({name: plain(value, name) for name, value in checkpoint.items()})


def plain(value: Any, place: str) -> Any:
    """The plain equivalent of a value, which ``weights_only=True`` reads; :class:`CheckpointError` if none."""
    if type(value) in _READ_BACK:
        return value
    if isinstance(value, Mapping):
        kind: Any = type(value) if type(value) in (OrderedDict, Counter) else dict
        pairs = {plain(key, f"{place}, key"): plain(part, f"{place}[{key!r}]") for key, part in value.items()}
        same = type(value) is kind and all(map(is_, [*pairs, *pairs.values()], [*value, *value.values()]))
        return value if same else kind(pairs)  # a `state_dict` has metadata of its own
    if isinstance(value, (list, tuple, set, frozenset)) and not isinstance(value, torch.Size):
        kind = next((base for base in (list, tuple) if isinstance(value, base)), set)
        return kind(plain(part, f"{place}[{k}]") for k, part in enumerate(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":  # the copy is in the machine's byte order
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    if isinstance(value, (np.ndarray, np.number, np.bool_)):
        return plain(value.tolist(), place)
    bases: tuple[tuple[type, Any], ...] = (int, int), (float, float), (str, str.__str__), (PurePath, str)
    for base, converted in bases:
        if isinstance(value, base):
            return converted(value)
    file = io.BytesIO()
    try:  # torch allows some more types, and the user may have allowed others
        torch.save(value, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:  # pickling runs code of others, which may fail in any way
        remedy = "Save numbers, text, tensors, or lists and dictionaries of these"
        if "hyper_parameters['" in place:
            remedy = f"Leave it out with `self.save_hyperparameters(ignore=[{place.split(chr(39))[1]!r}])`"
        shown = " ".join(repr(value).split())[:60]
        raise CheckpointError(
            f"A checkpoint can't hold {place}: {type(value).__name__} ({shown}) is not read back by "
            f"`torch.load(weights_only=True)`. {remedy}."
        ) from error
    return value


# ---------------------------------------------------------------- files


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file beside the target, waits for the disk, then renames the file to the target.

    Lightning's own plugin writes into the folder for temporary files and moves the result. On most clusters that folder
    lies on another file system, so moving means copying, and a process that is killed meanwhile leaves half a
    ``last.ckpt`` in place of the previous one. The module replaces Lightning's default plugin by this one, and no
    other. Object stores never show a file before it is complete, so these files are written as Lightning does. What
    could not be read back is refused; see :func:`make_plain`.
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the file, whole or not at all.

        Raises:
            CheckpointError: if it can't be written, or if an entry could not be read back.
        """
        make_plain(checkpoint)
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            with replacing(Path(path)) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch's writer makes another error of a full disk
            raise CheckpointError(
                f"The checkpoint {str(path)!r} can't be written ({str(error).partition(chr(10))[0]}), and what was "
                "there has not changed. Make room, or save elsewhere."
            ) from error

    @override
    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Verify the check sums, then load as Lightning does.

        Raises:
            MissingCheckpointError: if there is no such file.
            CheckpointError: if it is a folder, is damaged, is no checkpoint of Lightning, or holds something that
                ``weights_only=True`` does not read.
        """
        checkpoint = _read(path, lambda: super(AtomicCheckpointIO, self).load_checkpoint(path, *args, **kwargs))
        if isinstance(checkpoint, dict) and {"state_dict", "pytorch-lightning_version"} <= checkpoint.keys():
            return checkpoint
        raise CheckpointError(
            f"{str(path)!r} is no checkpoint of Lightning: it holds {_held(checkpoint)}. Load weights that something "
            "else saved with `model.load_state_dict(torch.load(path))`."
        )


def use_atomic_files(trainer: Trainer) -> None:
    """Replace Lightning's default plugin by :class:`AtomicCheckpointIO`; any other plugin stays."""
    strategy = trainer.strategy
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = AtomicCheckpointIO()


@contextmanager
def explained_reading(source: Any, weights_only: bool | None) -> Iterator[None]:
    """Name the file if it is damaged, or if reading it fails because it is no checkpoint; any other error stays."""
    check_file(source)
    try:
        yield
    except Exception:
        if isinstance(source, (str, Path)):
            AtomicCheckpointIO().load_checkpoint(source, map_location="cpu", weights_only=weights_only)
        raise


def check_file(path: Any) -> None:
    """Raise :class:`CheckpointError` for a local file that is missing, a folder or damaged."""
    if not isinstance(path, (str, Path)) or "://" in str(path):  # an open file, or one of an object store
        return
    if not str(path) or not Path(path).exists():  # '': `ckpt_path="best"` of a ModelCheckpoint that kept none
        raise MissingCheckpointError(
            f"There is no checkpoint {str(path)!r} (the current folder is {str(Path.cwd())!r})."
        )
    if Path(path).is_dir():
        raise CheckpointError(
            f"The checkpoint {str(path)!r} is a folder, as ModelParallelStrategy writes. Resume it with that strategy."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
        damage = part and f"its part {part!r} has changed"
    except Exception as error:  # zipfile fails with anything where a field has changed, such as the code of a name
        damage = f"its content can't be read ({error})"
    if damage:
        raise CheckpointError(
            f"The checkpoint {str(path)!r} is not whole: {damage}. Take an earlier one, or copy it again."
        )


def _held(content: Any) -> str:
    return f"the keys {list(content)[:5]}" if isinstance(content, dict) else f"a {type(content).__name__}"


def _read(path: str | Path, load: Callable[[], Any]) -> Any:
    """What ``load`` reads from a whole file; where torch does not read it, why, without torch's advice."""
    check_file(path)
    try:
        return load()
    except (pickle.UnpicklingError, RuntimeError) as error:  # the latter for any other zip file
        why, unsafe = str(error).partition("\n")[0], _UNSAFE.search(str(error))
        if unsafe:
            why = f"it holds {unsafe[1]}, which only `weights_only=False` reads"
        raise CheckpointError(f"torch can't read {str(path)!r}: {why}.") from error


# ---------------------------------------------------------------- weights of other runs


def load_weights(module: nn.Module, path: str | Path) -> Mapping[str, Any]:
    """Load a checkpoint, or a ``state_dict`` of module or backbone, into a module; returns what the file holds."""
    content = _read(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    start = f"`init_from={str(path)!r}` can't be used:"
    weights: Any = content.get("state_dict", content) if isinstance(content, dict) else {}
    own, tensors = (
        {name: value for name, value in each.items() if isinstance(value, Tensor) and not name.endswith("_extra_state")}
        for each in (module.state_dict(), weights)
    )
    if not tensors:
        raise CheckpointError(f"{start} it holds {_held(content)}, and no weights by name.")
    both = [own_names(module, {f"{prefix}{name}": tensors[name] for name in tensors}) for prefix in ("", "backbone.")]
    found = max(both, key=lambda renamed: len(own.keys() & renamed.keys()))
    differ = sorted(own.keys() ^ found.keys()) or [
        name for name in own if not is_lazy(own[name]) and own[name].shape != found[name].shape
    ]
    if differ:
        raise CheckpointError(f"{start} {differ[:3]} do not fit. Use the model that wrote the file.")
    with torch.no_grad():
        assign(own.values(), [found[name] for name in own])
    return content


def own_names(module: nn.Module, state: dict[str, T]) -> dict[str, T]:
    """Rename the entries of a ``state_dict`` to those of ``module``; either may have compiled parts."""

    def shortened(name: str) -> str:  # `torch.compile` keeps the module under this name
        return ".".join(part for part in name.split(".") if part != "_orig_mod")

    own = {shortened(name): name for name in module.state_dict()}
    return {own.get(shortened(name), name): value for name, value in state.items()}
