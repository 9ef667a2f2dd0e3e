"""Checks of classes that are mixed with ours: their order, their names, their package, and hooks that never run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import FrameType, ModuleType
from typing import Any, NoReturn

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
from lightning_tpauc.lightning_fixes.hooks import reaches_super

__all__ = (
    "is_own_class",
    "raise_taken",
    "refuse_bases",
    "refuse_taken",
    "refuse_twin",
    "refuse_unknown",
    "say_twin",
    "say_unused",
)

#: Lightning is published as two packages, whose classes do not know each other.
_TWINS = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}
_PACKAGE = LightningModule.__module__.split(".")[0]
_OURS = __name__.split(".")[0]
#: Hooks that ours replace in a class mixed in. ``training_step`` is not among them: replacing it is the purpose.
_REPLACED = (
    "validation_step",
    "test_step",
    "predict_step",
    "on_validation_epoch_end",
    "on_test_epoch_end",
)


def refuse_twin(cls: type, what: str) -> None:
    """Refuse a class that was made with the other one of Lightning's two packages.

    Args:
        cls: the class to look at, with its bases.
        what: how to call it in the message.

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
    """Whether a package, or one of its modules or classes, or an object of such a class, is what a name stands for."""
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
        arguments = "(batch.inputs, batch.target), batch_idx" if unused[0].endswith("_step") else "..."
        rank_zero_warn(
            f"{cls.__name__} does not call {', '.join(unused)}, nor logs what they log: TPAUCModule validates, tests "
            f"and predicts in their place. To have one as well, override it in {cls.__name__} and call it there, "
            f"`{unused[0]}(self, {arguments})`; ours runs beside it.",
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
