"""Checkpoint files: writes them whole or not at all, and says in one line why one can't be read or does not fit."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from lightning_tpauc.distributed import assign
from lightning_tpauc.errors import CheckpointError, MissingCheckpointError
from lightning_tpauc.files import replacing
from lightning_tpauc.lightning_fixes.plain_values import make_plain

#: How torch names the class that ``weights_only=True`` refuses.
_UNSAFE = re.compile(r"(?:GLOBAL |class )([\w.]+)")

T = TypeVar("T")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file beside the target, waits for the disk, then renames the file to the target.

    Lightning's own plugin writes into the folder for temporary files and moves the result. On most clusters that folder
    lies on another file system, so moving means copying, and a process that is killed meanwhile leaves half a
    ``last.ckpt`` in place of the previous one. The module replaces Lightning's default plugin by this one, and no
    other. Object stores never show a file before it is complete, so these files are written as Lightning does. What
    could not be read back is refused; see :func:`~lightning_tpauc.lightning_fixes.plain_values.make_plain`.

    Example:
        >>> import tempfile
        >>> io = AtomicCheckpointIO()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     io.save_checkpoint({"state_dict": {}, "pytorch-lightning_version": "2.6"}, f"{folder}/last.ckpt")
        ...     io.load_checkpoint(f"{folder}/last.ckpt")["state_dict"]
        {}
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the file, whole or not at all.

        Raises:
            CheckpointError: if it can't be written, or if an entry could not be read back.
        """
        make_plain(checkpoint)
        if storage_options is not None or not _is_local(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            with replacing(Path(path)) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__  # torch's writer makes another error of a full disk
            if cause is None:
                raise
            msg = (
                f"The checkpoint {str(path)!r} can't be written: {cause.strerror or cause}. What was there has "
                "not changed. Make room, or save elsewhere: `dirpath` of ModelCheckpoint, or another path."
            )
            raise CheckpointError(msg) from error

    @override
    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Verify the check sums, then load as Lightning does.

        Raises:
            MissingCheckpointError: if there is no such file.
            CheckpointError: if it is a folder, is damaged, is no checkpoint of Lightning, or holds something that
                ``weights_only=True`` does not read.
        """
        check_file(path)
        try:
            checkpoint: Any = super().load_checkpoint(path, *args, **kwargs)
        except pickle.UnpicklingError as error:
            msg = f"The checkpoint {str(path)!r} holds what only `weights_only=False` reads ({_reason(error)})."
            raise CheckpointError(msg) from error
        except RuntimeError as error:  # such as any other zip file
            msg = f"torch can't read {str(path)!r} as a checkpoint: {str(error).partition(chr(10))[0]}"
            raise CheckpointError(msg) from error
        if isinstance(checkpoint, dict) and {"state_dict", "pytorch-lightning_version"} <= checkpoint.keys():
            return checkpoint
        msg = (
            f"{str(path)!r} is no checkpoint of Lightning: it holds {_held(checkpoint)}. Load weights that something "
            "else saved with `model.load_state_dict(torch.load(path))`."
        )
        raise CheckpointError(msg)


def use_atomic_files(trainer: Trainer) -> None:
    """Replace Lightning's default plugin by :class:`AtomicCheckpointIO`; any other plugin stays."""
    strategy = trainer.strategy
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = AtomicCheckpointIO()


@contextmanager
def explained_reading(source: Any, weights_only: bool | None) -> Iterator[None]:
    """Name the file if it is damaged, or if reading it fails because it is no checkpoint; any other error stays."""
    is_path = isinstance(source, (str, Path))
    if is_path:
        check_file(source)
    try:
        yield
    except Exception:
        if is_path:
            AtomicCheckpointIO().load_checkpoint(source, map_location="cpu", weights_only=weights_only)
        raise


def check_file(path: str | Path) -> None:
    """Verify the check sums of a file on a local disk; others are not looked at.

    Raises:
        MissingCheckpointError: if there is no such file.
        CheckpointError: if it is a folder or damaged.
    """
    if not _is_local(path):
        return
    if not str(path) or not Path(path).exists():  # '': `ckpt_path="best"` of a ModelCheckpoint that kept none
        msg = f"There is no checkpoint {str(path)!r} (the current folder is {str(Path.cwd())!r})."
        raise MissingCheckpointError(msg)
    if Path(path).is_dir():
        msg = (
            f"The checkpoint {str(path)!r} is a folder, as ModelParallelStrategy writes with a file per process. "
            "Resume it with that strategy, or pass it `save_distributed_checkpoint=False` for one file."
        )
        raise CheckpointError(msg)
    damage = _damage(Path(path))
    if damage:
        msg = f"The checkpoint {str(path)!r} is not whole: {damage}. Take an earlier one, or copy it again."
        raise CheckpointError(msg)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of Lightning and verify its check sums; see :meth:`AtomicCheckpointIO.load_checkpoint`."""
    return AtomicCheckpointIO().load_checkpoint(path, map_location="cpu", weights_only=True)


def load_weights(module: nn.Module, path: str | Path) -> Mapping[str, Any]:
    """Load the weights of another run's checkpoint, or of a ``state_dict``, into a module (fine-tuning).

    A ``state_dict`` may be the module's or its ``backbone``'s.

    Returns:
        What the file holds.

    Raises:
        CheckpointError: if the file can't be read or its weights do not fit the model.
    """
    try:
        content, weights = _read_weights(path)
        weights = own_names(module, weights)
    except CheckpointError as error:
        msg = f"`init_from={str(path)!r}` can't be used: {error}"
        raise type(error)(msg) from error
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    of_backbone = own_names(module, {f"backbone.{name}": value for name, value in weights.items()})
    if not own.keys() & weights.keys() and own.keys() & of_backbone.keys():
        weights = of_backbone
    misfit = describe_misfit(own, weights)
    if misfit:
        msg = (
            f"The weights of `init_from={str(path)!r}` do not fit {type(module).__name__}: {misfit}. Use the model "
            "that wrote the file."
        )
        raise CheckpointError(msg)
    with torch.no_grad():
        assign(own.values(), [weights[name] for name in own])
    return content


def _read_weights(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file holds, and the weights in it: a checkpoint, or a ``state_dict`` that ``torch.save`` wrote."""
    check_file(path)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's readers fail with anything
        msg = f"it can't be read ({_reason(error)}). Save weights with `torch.save(model.state_dict(), path)`."
        raise CheckpointError(msg) from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(weights, dict) or not any(isinstance(value, Tensor) for value in weights.values()):
        msg = (
            f"it holds {_held(content)} instead of weights by name, such as `torch.save(model.state_dict(), path)` "
            "writes."
        )
        raise CheckpointError(msg)
    return content, weights


def load_state(module: nn.Module, load: Callable[[], Any], state: Any) -> Any:
    """Let torch load a ``state_dict``, and turn its error into one line.

    Raises:
        CheckpointError: if weights are missing, unknown, or of another shape.
    """
    try:
        return load()
    except (RuntimeError, TypeError) as error:
        if isinstance(state, Mapping):
            what = describe_misfit(module.state_dict(), own_names(module, dict(state)))
        else:
            what = f"expected weights by name, but got a {type(state).__name__}"
        if not what:
            raise
        backbone = getattr(module, "backbone", None)
        backbone = getattr(backbone, "_orig_mod", backbone)  # compiled
        name = type(module).__name__ + (f" with {type(backbone).__name__}" if backbone is not None else "")
        msg = f"The checkpoint's weights do not fit {name}: {what}. Use the model that wrote the checkpoint."
        raise CheckpointError(msg) from error


def describe_misfit(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str:
    """Describe how weights differ from a model's own ``state_dict``; empty if they fit.

    Example:
        >>> describe_misfit({"w": torch.zeros(2), "b": torch.zeros(1)}, {"w": torch.zeros(3), "c": torch.zeros(1)})
        "it lacks 'b'; it adds 'c'; 'w' has shape (3,) instead of (2,)"
    """
    lacks, adds = (sorted(map(repr, one.keys() - other.keys())) for one, other in ((own, weights), (weights, own)))
    kinds = [kind for name in own if name in weights if (kind := _other_kind(name, own[name], weights[name]))]
    findings = ("it lacks ", lacks), ("it adds ", adds), ("", kinds)
    return "; ".join(
        text + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for text, names in findings
        if names
    )


def _other_kind(name: str, own: Any, value: Any) -> str:
    if not isinstance(own, Tensor) or is_lazy(own):
        return ""
    if not isinstance(value, Tensor):
        return f"{name!r} is a {type(value).__name__}"
    return f"{name!r} has shape {tuple(value.shape)} instead of {tuple(own.shape)}" if own.shape != value.shape else ""


def own_names(module: nn.Module, state: dict[str, T]) -> dict[str, T]:
    """Rename the entries of a ``state_dict`` to those of ``module``; either may have compiled parts.

    Example:
        >>> own_names(nn.Sequential(nn.Linear(3, 1)), {"0._orig_mod.weight": 5})
        {'0.weight': 5}
    """
    paths = {_plain(name): name for name, _ in module.named_modules(remove_duplicate=False)}

    def renamed(name: str) -> str:
        path, _, leaf = _plain(name).rpartition(".")
        known = paths.get(path)
        return name if known is None else f"{known}.{leaf}" if known else leaf

    return {renamed(name): value for name, value in state.items()}


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod")  # where `torch.compile` keeps the module


def _damage(path: Path) -> str | None:
    """What is wrong with a file, if anything; torch itself does not compare check sums when it reads."""
    try:
        if not zipfile.is_zipfile(path):
            return f"its {path.stat().st_size} bytes end too early or were never a checkpoint"
        has_sums = getattr(torch.serialization, "get_crc32_options", lambda: True)  # they can be turned off
        if not has_sums():
            return None
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except Exception as error:  # zipfile fails with anything where a field has changed, such as the code of a name
        return f"it can't be read ({error})"
    return f"its part {part!r} has changed since it was written" if part else None


def _held(content: Any) -> str:
    return f"the keys {list(content)[:5]}" if isinstance(content, dict) else f"a {type(content).__name__}"


def _reason(error: Exception) -> str:
    """Why torch does not read a file, without torch's advice."""
    text = str(error)
    unsafe = _UNSAFE.search(text)
    if unsafe:
        return unsafe[1]
    return text.strip().partition("\n")[0] if isinstance(error, pickle.UnpicklingError) else "it is damaged"


def _is_local(path: str | Path) -> bool:
    return "://" not in str(path)
