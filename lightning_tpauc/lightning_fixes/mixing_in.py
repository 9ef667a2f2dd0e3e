"""Classes that are mixed with TPAUCModule: their order, the names that both use, and hooks that are replaced."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.errors import ArgumentError, TPAUCAdvice, TPAUCWarning, UnsupportedError

#: Lightning is published as two packages, whose classes do not know each other.
_TWINS = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}
_PACKAGE = LightningModule.__module__.split(".")[0]
_OURS = __name__.split(".")[0]
#: Hooks that ours replace. What is said of ``training_step`` alone is no warning: replacing it is the purpose.
_REPLACED = (
    *("training_step", "validation_step", "test_step", "predict_step"),
    *("on_validation_epoch_end", "on_test_epoch_end"),
)
_told: WeakSet[type] = WeakSet()


def refuse_twin(cls: type, what: str) -> None:
    """Refuse a class that was made with the other one of Lightning's two packages.

    Raises:
        UnsupportedError: if one of its bases comes from that package.
    """
    twin = _TWINS[_PACKAGE]
    for base in cls.__mro__:
        if _root(base) == twin:
            msg = (
                f"{what} comes from the package `{twin}` ({base.__module__}.{base.__name__}), but TPAUCModule from "
                f"`{_PACKAGE}`: neither knows the other's classes. Import it from `{_PACKAGE}.pytorch`, and nothing "
                f"from `{twin}`."
            )
            raise UnsupportedError(msg)


def check_order(cls: type, ours: type) -> None:
    """Refuse a class that has another LightningModule in front of ours, or one of the other package.

    Raises:
        UnsupportedError: with the right order.
    """
    refuse_twin(cls, f"A base of {cls.__name__}")
    for base in cls.__mro__[: cls.__mro__.index(ours)]:
        if issubclass(base, LightningModule) and not issubclass(base, ours):
            names = ", ".join(b.__name__ for b in cls.__bases__)
            msg = (
                f"In class {cls.__name__}({names}) {base.__name__} comes before {ours.__name__}, so its hooks would "
                f"stand in place of ours. Put {ours.__name__} in front: class {cls.__name__}({ours.__name__}, "
                f"{base.__name__})."
            )
            raise UnsupportedError(msg)


def refuse_taken(module: LightningModule, names: Iterable[str]) -> None:
    """Raise :class:`ArgumentError` if a class that is mixed in uses one of our attributes' names for its own."""
    held = {*vars(module), *module._modules, *module._parameters, *module._buffers}
    held |= {name for base in type(module).__mro__ if _root(base) != _OURS for name in vars(base)}
    for name in names:
        if name in held:
            raise name_taken(module, name)


def name_taken(module: LightningModule, name: str) -> ArgumentError:
    """The error of a class mixed in that uses a name of ours."""
    return ArgumentError(
        f"{type(module).__name__} mixes TPAUCModule into a class that has `{name}` already, which would be "
        "overwritten. Give it another name there."
    )


def say_replaced(cls: type, ours: type) -> None:
    """Say once per class which hooks of a class mixed in never run, because ours stand in their place."""
    if cls in _told:
        return
    _told.add(cls)
    replaced = [f"{owner.__name__}.{name}" for name in _REPLACED if (owner := _replaced_in(cls, ours, name))]
    if replaced:
        last = replaced[-1]
        rank_zero_warn(
            f"{cls.__name__} does not call {', '.join(replaced)}, nor logs what they log: TPAUCModule trains and "
            f"evaluates in their place. To have one as well, override it in {cls.__name__} and call it there, "
            f"`{last}(self, ...)`, with `(batch.inputs, batch.target)` for the batch; rows whose target is -1 pad "
            "batches or were not measured. A loss goes into `auxiliary_loss`.",
            category=TPAUCAdvice if last.endswith(".training_step") else TPAUCWarning,
        )


def _replaced_in(cls: type, ours: type, name: str) -> type | None:
    """The class after ours whose hook is replaced; ``None`` if there is none, or if ``cls`` overrides it."""
    if getattr(cls, name) is not getattr(ours, name):
        return None
    later = cls.__mro__[cls.__mro__.index(ours) + 1 :]
    return next((b for b in later if name in vars(b) and _root(b) not in (_OURS, *_TWINS, "torch")), None)


def _root(cls: type) -> str:
    return cls.__module__.split(".")[0]
