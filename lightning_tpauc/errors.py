"""Every error and warning that the package raises on purpose.

All errors derive from :class:`TPAUCError` *and* from the builtin that they refine, so ``except ValueError`` keeps
working. A message names the argument, the value that came in and the remedy.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SILENT = ContextVar("_SILENT", default=False)


class TPAUCError(Exception):
    """Base of all errors of this package."""


class ArgumentError(TPAUCError, ValueError):
    """An argument has a wrong value, shape or dtype."""


class TooFewExamplesError(ArgumentError):
    """There are too few examples for ``confidence``; the message says what they allow."""


class DataError(TPAUCError, ValueError):
    """A data set can't be trained on: a class is missing, labels are not 0/1, a file does not parse."""


class CheckpointError(TPAUCError, RuntimeError):
    """A checkpoint belongs to other data, another algorithm or a newer format, or is damaged."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at the path that was given."""


class UnsupportedError(TPAUCError, RuntimeError):
    """A Trainer flag, strategy or callback that would give wrong results here."""


class NonFiniteError(TPAUCError, ArithmeticError):
    """The loss or the state of the algorithm became nan or infinite."""


class MissingExtraError(TPAUCError, ImportError):
    """An optional dependency is not installed; the message names the pip command."""


class TPAUCWarning(UserWarning):
    """Something was adjusted or looks wrong; training goes on."""


class TPAUCAdvice(UserWarning):
    """A run falls short of what was asked for; the message says what would help."""


def warn_on_rank_zero(message: str, category: type[Warning] = TPAUCWarning) -> None:
    """Emit a :class:`TPAUCWarning`, or another one, on rank 0, or in the only process.

    Python's default filter shows equal messages once, so a ``message`` without changing numbers appears once per run.
    """
    if _SILENT.get():
        return
    from torch import distributed  # this file is read before torch is needed

    started = distributed.is_available() and distributed.is_initialized()
    if (distributed.get_rank() if started else int(os.environ.get("LOCAL_RANK", "0"))) == 0:
        warnings.warn(message, category, stacklevel=2)


@contextmanager
def silent() -> Iterator[None]:
    """Keep :func:`warn_on_rank_zero` quiet.

    ``warnings.catch_warnings`` would do so, too, but Python then repeats, each time, all warnings that it shows once.
    """
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
