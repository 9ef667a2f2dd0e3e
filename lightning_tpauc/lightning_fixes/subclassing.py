"""Classes that are mixed with ours or override their hooks: checks of order and names, and hooks that always run.

A class with such hooks derives from :class:`KeepsDuties` and marks each of them with :func:`duty`. When a subclass, or
a class mixed in before ours, defines a hook of the same name, that hook is wrapped. If it does not reach our hook by
``super()``, the wrapper does our part once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType, ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_When = Literal["before", "after", "result", "required"]

#: Lightning is published as two packages, whose classes do not know each other.
_TWINS = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}
_PACKAGE = LightningModule.__module__.split(".")[0]
_OURS = __name__.split(".")[0]
#: Hooks that ours replace in a class mixed in. ``training_step`` is not among them: replacing it is the purpose.
_REPLACED = ("validation_step", "test_step", "predict_step", "on_validation_epoch_end", "on_test_epoch_end")


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
        "trained. Call it once a batch; log and return what you like beside it."
    )


def refuse_twin(cls: type, what: str) -> None:
    """Refuse a class that was made with the other one of Lightning's two packages.

    Raises:
        UnsupportedError: if one of its bases comes from that package.
    """
    twin = _TWINS[_PACKAGE]
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == twin:
            msg = (
                f"{what} comes from the package `{twin}` ({base.__module__}.{base.__name__}), but TPAUCModule from "
                f"`{_PACKAGE}`: neither knows the other's classes. Import it from `{_PACKAGE}.pytorch`, and nothing "
                f"from `{twin}`."
            )
            raise UnsupportedError(msg)


def say_twin() -> None:
    """Warn if the code that makes a module uses the other package, whose Trainer can't say why it refuses the module.

    That a library has imported the other package is no reason to warn: the functions that are running are looked at.
    """
    twin = _TWINS[_PACKAGE]
    frame: FrameType | None = inspect.currentframe() if twin in sys.modules else None
    while frame is not None:
        if any(_comes_from(twin, value) for names in (frame.f_globals, frame.f_locals) for value in (*names.values(),)):
            rank_zero_warn(
                f"`{twin}` and `{_PACKAGE}` are mixed: TPAUCModule is a LightningModule of `{_PACKAGE}`, which a "
                f"Trainer, callback or logger of `{twin}` does not know. Import all from `{_PACKAGE}.pytorch`.",
                category=TPAUCWarning,
            )
            return
        frame = frame.f_back


def _comes_from(package: str, value: object) -> bool:
    """Whether a value is a package, one of its modules or classes, or an object of one of its classes."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
    if isinstance(value, type):
        name = value.__module__
    return isinstance(name, str) and name.split(".")[0] == package


def refuse_bases(cls: type) -> None:
    """Refuse a class that mixes ours with a LightningModule in the wrong order, or with one of the other package.

    Raises:
        UnsupportedError: with the right order.
    """
    refuse_twin(cls, f"A base of {cls.__name__}")
    for base in cls.__mro__:
        if is_own_class(base):
            return
        steps = vars(base).get("training_step")
        mixed_in = issubclass(base, LightningModule) and not any(is_own_class(b) for b in base.__mro__)
        if mixed_in and steps is not None and not reaches_super(steps):
            msg = (
                f"In class {cls.__name__}({', '.join(b.__name__ for b in cls.__bases__)}) the training_step of "
                f"{base.__name__} comes before TPAUCModule's. Put TPAUCModule in front: class "
                f"{cls.__name__}(TPAUCModule, {base.__name__})."
            )
            raise UnsupportedError(msg)


def refuse_taken(module: LightningModule, *names: str) -> None:
    """Raise :class:`ArgumentError` if a class that is mixed in uses one of our attributes' names for its own."""
    held = {*vars(module), *dict(module.named_children()), *dict(module.named_buffers(recurse=False))}
    held |= set(dict(module.named_parameters(recurse=False)))
    held |= {name for base in type(module).__mro__ if not is_own_class(base) for name in vars(base)}
    taken = [name for name in names if name in held]
    if taken:
        raise_taken(module, *taken)


def refuse_unknown(module: LightningModule, arguments: Iterable[str]) -> None:
    """Raise :class:`TypeError` if arguments are left over and no class is mixed in that could take them."""
    name = next(iter(arguments), None)
    ours = [k for k, base in enumerate(type(module).__mro__) if is_own_class(base)]
    following = type(module).__mro__[ours[-1] + 1]
    if name is not None and following is LightningModule:
        msg = (
            f"{type(module).__name__} got an unexpected keyword argument {name!r}. Those of an optimizer are given to "
            "it, `optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01)`, and those of a method likewise, "
            "`algorithm=STACO(min_tpr=0.8, max_fpr=0.2)`."
        )
        raise TypeError(msg)


def raise_taken(module: LightningModule, *names: str) -> NoReturn:
    """Raise :class:`ArgumentError`: a class that is mixed in uses these names of ours."""
    msg = (
        f"{type(module).__name__} mixes TPAUCModule into a class that has {' and '.join(f'`{n}`' for n in names)} "
        "already, which would be overwritten. Give it another name there."
    )
    raise ArgumentError(msg)


def say_unused(module: LightningModule) -> None:
    """Warn, once per class, of hooks of a class mixed in that never run because ours replace them."""
    cls = type(module)
    unused = list(_unused(cls)) if "_unused_said" not in vars(cls) else []
    cls._unused_said = True  # type: ignore[attr-defined]
    if unused:
        of_step = unused[0].endswith("_step")
        arguments = "(batch.inputs, batch.target), batch_idx" if of_step else "..."
        padded = " Leave out rows whose target is -1: they pad batches or were not measured." if of_step else ""
        rank_zero_warn(
            f"{cls.__name__} does not call {', '.join(unused)}, nor logs what they log: TPAUCModule validates, tests "
            f"and predicts in their place. To have one as well, override it in {cls.__name__} and call it there, "
            f"`{unused[0]}(self, {arguments})`; ours runs beside it.{padded}",
            category=TPAUCWarning,
        )


def _unused(cls: type) -> Iterable[str]:
    for name in _REPLACED:
        definers = [base for base in cls.__mro__ if name in vars(base)]
        if definers and is_own_class(definers[0]):
            others = [b for b in definers if not is_own_class(b) and _root(b) not in (*_TWINS, "torch")]
            yield from (f"{base.__name__}.{name}" for base in others[:1])


def _root(cls: type) -> str:
    return cls.__module__.split(".")[0]


def is_own_class(cls: Any) -> bool:
    """Whether a class is one of this package."""
    return _root(cls) == _OURS
