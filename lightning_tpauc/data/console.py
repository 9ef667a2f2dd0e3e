"""Where progress bars go."""

from __future__ import annotations

from rich import get_console
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
    console = get_console()
    return console if console.is_terminal else Console(quiet=True)
