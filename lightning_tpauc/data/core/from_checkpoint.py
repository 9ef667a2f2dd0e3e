"""What Lightning's data modules get wrong: those from checkpoints without arguments, and words for those of loaders."""

from __future__ import annotations

from pickle import UnpicklingError
from typing import Any

from lightning.pytorch import LightningDataModule

from lightning_tpauc.errors import CheckpointError, MissingCheckpointError

__all__ = ("CheckedDataModule",)


class CheckedDataModule(LightningDataModule):
    """A data module that is made from a checkpoint only if its arguments are in it."""

    def __str__(self) -> str:
        """Its class; Lightning goes through the batches of loaders that are none of torch's, and fails."""
        return repr(self)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a data module from the arguments that a subclass kept by ``self.save_hyperparameters()``.

        Args:
            checkpoint_path: path or open file of a checkpoint.
            args: see :meth:`lightning.pytorch.LightningDataModule.load_from_checkpoint`.
            kwargs: see there; arguments that replace those of the checkpoint.

        Raises:
            CheckpointError: if the file is no checkpoint of Lightning. Also if neither it nor the caller has arguments,
                since data are not kept.
        """
        try:
            made = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        except FileNotFoundError as error:
            msg = f"There is no checkpoint {str(checkpoint_path)!r}."
            raise MissingCheckpointError(msg) from error
        except (AttributeError, EOFError, LookupError, RuntimeError, TypeError, UnpicklingError) as error:
            msg = f"{str(checkpoint_path)!r} is no checkpoint from which a {cls.__name__} can be made: {error!r}."
            raise CheckpointError(msg) from error
        if not made.hparams and not kwargs:
            msg = (
                f"The checkpoint {str(checkpoint_path)!r} holds no arguments of {cls.__name__}: checkpoints keep no "
                f"data. Make the {cls.__name__} as before and pass it to the Trainer with `ckpt_path`."
            )
            raise CheckpointError(msg)
        return made
