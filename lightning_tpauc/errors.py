"""Every error and warning that the package raises on purpose.

All errors derive from :class:`TPAUCError` *and* from the builtin that they refine, so ``except ValueError`` keeps
working. A message names the argument, the value that came in and the remedy.
"""


class TPAUCError(Exception):
    """Base of all errors of this package."""


class ArgumentError(TPAUCError, ValueError):
    """An argument has a wrong value, shape or dtype."""


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
    """Something was adjusted, once, and says so."""


class TPAUCAdvice(UserWarning):
    """A run does not get where it should, and what would help."""
