"""Errors of the constructors' arguments, worded in one place."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tpauc.errors import ArgumentError


def check_size(name: str, value: object) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        msg = f"Expected `{name}` to be an int >= 1, but got {value!r}."
        raise ArgumentError(msg)


def check_sizes(name: str, values: object, at_least: int = 0) -> None:
    """Raise :class:`ArgumentError` unless ``values`` holds ``at_least`` or more ints that are all at least 1."""
    if not isinstance(values, (tuple, list)) or len(values) < at_least:
        msg = f"Expected `{name}` to be a sequence of {at_least} or more ints >= 1, but got {values!r}."
        raise ArgumentError(msg)
    for value in values:
        check_size(name, value)


def check_dropout(value: object) -> None:
    """Raise :class:`ArgumentError` unless 0 <= ``value`` < 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.0 <= value < 1.0:
        msg = f"Expected `dropout` to be a number in [0, 1), but got {value!r}."
        raise ArgumentError(msg)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is one of ``choices``."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        msg = f"Expected `{name}` to be one of {listed}, but got {value!r}."
        raise ArgumentError(msg)
