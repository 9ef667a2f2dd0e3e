"""Hooks that do their part even if a subclass overrides them without calling ``super()``, as Lightning's recipes do.

A class with such hooks derives from :class:`KeepsDuties` and marks each of them with :func:`duty`. When a subclass, or
a class mixed in before ours, defines a hook of the same name, that hook is wrapped. If it does not reach our hook by
``super()``, the wrapper does our part once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from lightning_tpauc.errors import UnsupportedError

__all__ = ("KeepsDuties", "duty", "reaches_super", "refuse_replaced")

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_When = Literal["before", "after", "result", "required"]


class _Duty(NamedTuple):
    run: Callable[..., Any]
    when: _When
    cooperative: bool


def duty(when: _When, *, cooperative: bool = True) -> Callable[[_Hook], _Hook]:
    """Mark a hook of a :class:`KeepsDuties`; the body holds our part only.

    Args:
        when: what happens if a subclass's hook does not call ours. ``"before"`` and ``"after"`` do our part before or
            after it. ``"required"`` raises an error. ``"result"`` is for hooks that return something: our part always
            gets what they return and returns what is used. It may run twice.
        cooperative: whether the hook of the next class in the method resolution order is called before our part; if
            not, the hook of a class mixed in is never called.
    """

    def mark(hook: _Hook) -> _Hook:
        hook.duty = _Duty(hook, when, cooperative)  # type: ignore[attr-defined]
        return hook

    return mark


class KeepsDuties:
    """Makes hooks that are marked by :func:`duty` do their part in every subclass.

    Raises:
        UnsupportedError: when a hook is called that does not call our required one.

    Example:
        >>> class Base(KeepsDuties):
        ...     @duty("before", cooperative=False)
        ...     def on_start(self):
        ...         print("ours")
        >>> class Theirs(Base):
        ...     def on_start(self):
        ...         print("theirs")
        >>> Theirs().on_start()
        ours
        theirs
    """

    _duties: ClassVar[dict[str, _Duty]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # collected from all bases, since a class may derive from two of ours
        cls._duties = {
            name: kept for base in reversed(cls.__mro__) for name, kept in vars(base).get("_duties", {}).items()
        }
        for name, hook in list(vars(cls).items()):
            if _has_duty(hook):
                cls._duties[name] = hook.duty
                setattr(cls, name, _ours(cls, name, hook.duty))
        for name, kept in cls._duties.items():
            hook = getattr(cls, name)
            if not _has_duty(hook):
                setattr(cls, name, _theirs(name, hook, kept))


def refuse_replaced(instance: object) -> None:
    """Refuse hooks that were assigned to an instance, or to a class after its definition, in place of ours.

    Such an assignment can't be wrapped.

    Raises:
        UnsupportedError: with the hook's name.

    Example:
        >>> class Base(KeepsDuties):
        ...     @duty("before", cooperative=False)
        ...     def on_start(self):
        ...         pass
        >>> base = Base()
        >>> refuse_replaced(base)
        >>> base.on_start = print
        >>> refuse_replaced(base)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        lightning_tpauc.errors.UnsupportedError: `Base.on_start` was replaced by print, so what ...
    """
    for name in getattr(instance, "_duties", ()):
        hook = getattr(instance, name)
        if not _has_duty(hook):
            msg = (
                f"`{type(instance).__name__}.{name}` was replaced by {getattr(hook, '__qualname__', hook)}, so what "
                "the package does in it would be missing. Override it in a subclass instead, where ours runs as well."
            )
            raise UnsupportedError(msg)


def reaches_super(function: Any) -> bool:
    """Whether a method's code calls the method of the next class; ``True`` if there is no code to look at.

    Example:
        >>> class Mine(dict):
        ...     def keys(self):
        ...         return super().keys()
        ...     def values(self):
        ...         return []
        >>> reaches_super(Mine.keys), reaches_super(Mine.values)
        (True, False)
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is None or "super" in code.co_names or function.__name__ in code.co_names  # or Base.keys(self)


def _has_duty(hook: Any) -> bool:
    return isinstance(getattr(hook, "duty", None), _Duty)


def _done(instance: Any) -> set[str]:
    done: set[str] = vars(instance).setdefault("_duties_done", set())
    return done


def _ours(owner: type, name: str, kept: _Duty) -> Callable[..., Any]:
    """Wrap our hook: it calls the hook of the next class, then does our part."""

    @wraps(kept.run)
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(super(owner, self), name)(*args, **kwargs) if kept.cooperative else None
        if kept.when == "result":
            return kept.run(self, result)
        _done(self).add(name)
        return kept.run(self, *args, **kwargs)

    return hook


def _theirs(name: str, hook: Callable[..., Any], kept: _Duty) -> Callable[..., Any]:
    """Wrap a hook that comes before ours and may not call it."""
    silent = not reaches_super(hook)

    @wraps(hook)
    def keeping(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kept.when == "result":
            return kept.run(self, hook(self, *args, **kwargs))
        done = _done(self)
        done.discard(name)
        if kept.when == "before" and silent:
            done.add(name)
            kept.run(self, *args, **kwargs)
        try:
            result = hook(self, *args, **kwargs)
        except Exception as error:
            if kept.when == "required" and silent and name not in done:
                raise UnsupportedError(_never_called(self, name, hook, error)) from error
            raise
        if name not in done:
            if kept.when == "required":
                raise UnsupportedError(_never_called(self, name, hook))
            done.add(name)
            kept.run(self, *args, **kwargs)
        return result

    keeping.duty = kept  # type: ignore[attr-defined]
    return keeping


def _never_called(instance: Any, name: str, hook: Callable[..., Any], error: Exception | None = None) -> str:
    where = getattr(hook, "__qualname__", name)
    why = f" (it raised {type(error).__name__}: {error})" if error is not None else ""
    return (
        f"{where}, which {type(instance).__name__} uses, did not call `super().{name}(...)`{why}: nothing would be "
        "trained. Call it, once a batch, and log or return beside it what you like."
    )
