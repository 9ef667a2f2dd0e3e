"""What the data module takes from Lightning and from :class:`torch.utils.data.DataLoader`, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pickle import UnpicklingError
from typing import Any, TypedDict

from lightning.pytorch import LightningDataModule

from lightning_tpauc.errors import ArgumentError, CheckpointError, MissingCheckpointError
from lightning_tpauc.functional.checks import check_count, is_real

# Arguments that choose the examples of a batch, which is what our samplers do.
_DRAWING = ("shuffle", "sampler", "batch_sampler", "drop_last", "generator")
# Arguments that mean nothing without workers; torch refuses them as well.
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")


class LoaderOptions(TypedDict, total=False):
    """The arguments; see :class:`~lightning_tpauc.PosNegDataModule`."""

    collate_fn: Callable[[list[Any]], Any] | None
    persistent_workers: bool | None
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any


def check_counts(counts: Mapping[str, Any]) -> None:
    """Raise :class:`ArgumentError` for the first of a data module's numbers that is too small or no number.

    Args:
        counts: values by the names of the arguments. Sizes of batches may be ``None``: they are chosen later.
    """
    for name, value in counts.items():
        if value is not None or name not in ("num_pos", "num_neg", "num_dual_neg", "steps_per_epoch"):
            check_count(value, name, 0 if name in ("num_workers", "num_dual_neg") else 1)


def checked_options(
    options: LoaderOptions, num_workers: int
) -> tuple[Callable[[list[Any]], Any] | None, dict[str, Any]]:
    """``collate_fn``, and the other options without those that are ``None``.

    Raises:
        ArgumentError: if a value is out of range, needs workers where there are none, or says which examples to draw.
        TypeError: if there is no such option.

    Example:
        >>> checked_options({"prefetch_factor": 4, "worker_init_fn": None}, num_workers=2)
        (None, {'prefetch_factor': 4})
    """
    for name in options:
        if name in _DRAWING:
            msg = f"`{name}` has no place here: leave it out, since `sampling`, `num_pos` and `seed` say what is drawn."
            raise ArgumentError(msg)
        if name not in LoaderOptions.__annotations__:
            msg = f"PosNegDataModule got an unexpected keyword argument {name!r}"
            raise TypeError(msg)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in ("collate_fn", "worker_init_fn"):
        if not callable(given.get(name, print)):
            msg = f"Expected `{name}` to be a function, but got {given[name]!r}."
            raise ArgumentError(msg)
    if "prefetch_factor" in given:
        check_count(given["prefetch_factor"], "prefetch_factor", 1)
    timeout = given.get("timeout", 0)
    if not is_real(timeout) or not 0 <= timeout < float("inf"):
        msg = f"Expected `timeout` to be a number of seconds, at least 0, but got {timeout!r}."
        raise ArgumentError(msg)
    if num_workers == 0:
        needy = next((name for name in _OF_WORKERS if given.get(name)), None)
        if needy is not None:
            msg = f"`{needy}={given[needy]!r}` needs worker processes: set `num_workers` to 1 or more, or leave it out."
            raise ArgumentError(msg)
        return given.get("collate_fn"), {}
    return given.pop("collate_fn", None), given


class CheckedDataModule(LightningDataModule):
    """A data module that is made from a checkpoint only if its arguments are in it."""

    def __str__(self) -> str:
        """The name of its class. Lightning's own text would go through all batches of loaders that are not torch's."""
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
