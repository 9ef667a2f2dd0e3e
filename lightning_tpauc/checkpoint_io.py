"""Checkpoint files that are whole or not there, whenever the process is killed."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lightning_tpauc.errors import CheckpointError, MissingCheckpointError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("AtomicCheckpointIO", "use_atomic_files")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, waits for the disk, then renames: the name always belongs to a whole checkpoint.

    Lightning's own plugin writes into the folder for temporary files and moves the result. Where that folder is another
    file system than the checkpoints', as on most clusters, moving is copying, and a kill in the middle leaves
    half of ``last.ckpt`` in place of the one that was there. The module puts this plugin in place of Lightning's unless
    the Trainer has another. Files on object stores are whole by nature and written as ever.

    Example:
        >>> import tempfile
        >>> io = AtomicCheckpointIO()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     io.save_checkpoint({"state_dict": {}, "pytorch-lightning_version": "2.6"}, f"{folder}/last.ckpt")
        ...     io.load_checkpoint(f"{folder}/last.ckpt")["state_dict"], os.listdir(folder)
        ({}, ['last.ckpt'])
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if storage_options is not None or not _is_local(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # One name per target: the next attempt overwrites what a kill leaves behind. It must not hold the name of the
        # target, or Lightning would take it for a checkpoint.
        beside = target.with_name(f".{crc32(target.name.encode()):08x}.saving")
        try:
            with beside.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    @override
    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load as Lightning does, after a look at the check sums.

        Raises:
            MissingCheckpointError: if there is no such file.
            CheckpointError: if it is a folder, not whole, or no checkpoint of Lightning.
        """
        if _is_local(path) and not Path(path).exists():
            msg = f"There is no checkpoint {str(path)!r} (the current folder is {str(Path.cwd())!r})."
            raise MissingCheckpointError(msg)
        if _is_local(path) and Path(path).is_dir():
            msg = (
                f"The checkpoint {str(path)!r} is a folder, as ModelParallelStrategy writes with a file per process. "
                "Resume it with that strategy, or pass it `save_distributed_checkpoint=False` for one file."
            )
            raise CheckpointError(msg)
        damage = _damage(Path(path)) if _is_local(path) else None
        if damage:
            msg = f"The checkpoint {str(path)!r} is not whole: {damage}. Resume from an earlier one, or copy it again."
            raise CheckpointError(msg)
        checkpoint: Any = super().load_checkpoint(path, *args, **kwargs)
        if not isinstance(checkpoint, dict) or not {"state_dict", "pytorch-lightning_version"} <= checkpoint.keys():
            held = f"the keys {list(checkpoint)[:5]}" if isinstance(checkpoint, dict) else type(checkpoint).__name__
            msg = (
                f"{str(path)!r} is no checkpoint of Lightning: it holds {held}. Load weights that something else saved "
                "with `model.load_state_dict(torch.load(path))`."
            )
            raise CheckpointError(msg)
        return checkpoint


def use_atomic_files(trainer: Trainer) -> None:
    """Put :class:`AtomicCheckpointIO` in place of Lightning's default plugin, and of no other."""
    strategy = trainer.strategy
    if type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = AtomicCheckpointIO()


def _damage(path: Path) -> str | None:
    """What is wrong with a file; ``None`` if nothing is.

    torch does not compare check sums when it reads, so a changed bit would go into the weights unnoticed.
    """
    if not zipfile.is_zipfile(path):
        return f"its {path.stat().st_size} bytes end too early or were never a checkpoint"
    get_options = getattr(torch.serialization, "get_crc32_options", None)
    if get_options is not None and not get_options():  # whoever turned check sums off has none to compare
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        return f"it can't be read ({error})"
    return f"its part {part!r} has changed since it was written" if part else None


def _is_local(path: str | Path) -> bool:
    return "://" not in str(path)
