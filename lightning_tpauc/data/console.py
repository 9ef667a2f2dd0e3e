"""Where progress bars go.

Whoever shows one imports rich when it does so and not before: typing keeps the order in which a union is first named,
and rich names float before int. Imported before Lightning, it would let the command line read
``--trainer.limit_train_batches=1`` as 1.0, the whole epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ("bar_console",)


def bar_console() -> Console:
    """Rich's console if it is a terminal, else one that prints nothing.

    A disabled bar is not enough: before rich 15 it prints an empty line when it stops, into whatever a program writes.

    Example:
        >>> console = bar_console()
        >>> console.is_terminal or console.quiet
        True
    """
    from rich import get_console
    from rich.console import Console

    console = get_console()
    return console if console.is_terminal else Console(quiet=True)
