"""State that is declared once: allocation, device moves, checkpoints and the roll-back of a step follow from it.

An algorithm is a plain object, not an :class:`torch.nn.Module`: its state (dual weights, thresholds) belongs to
training and must be touched neither by precision plugins, which cast buffers to bfloat16, nor by
DistributedDataParallel, which overwrites them with rank 0's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from lightning_tpauc.errors import ArgumentError, CheckpointError
from lightning_tpauc.functional.checks import as_index, is_whole
from lightning_tpauc.functional.pairwise import put_

StateKind = Literal["positive", "dense", "scalar", "vector"]


class StateSpec(NamedTuple):
    """Declaration of one state tensor."""

    kind: StateKind
    fill: float | tuple[float, ...]
    dtype: torch.dtype | None


class DeclaredState:
    """Named tensors, declared with :meth:`add_state` and allocated by :meth:`setup`.

    Per-positive state of K labels holds the labels one after the other. One spare entry at its end takes the values
    that pad a batch. Scalar state of K labels has K entries.
    """

    def __init__(self) -> None:
        #: Number of positives of all labels together; ``None`` before :meth:`setup`.
        self.num_positives: int | None = None
        #: Number of positives of each of several labels; ``None`` for one label.
        self.task_sizes: tuple[int, ...] | None = None
        self._specs: dict[str, StateSpec] = {}
        #: Tensors with an entry for each of several labels that no step changes, and that are not saved.
        self._per_task: dict[str, Tensor] = {}

    def add_state(
        self, name: str, kind: StateKind, fill: float | tuple[float, ...] = 0.0, dtype: torch.dtype | None = None
    ) -> None:
        """Declare a state tensor that :meth:`setup` allocates as an attribute.

        Args:
            name: attribute name and key in :meth:`state_dict`.
            kind: ``"positive"`` for one entry per positive example, of which a step changes those in ``index`` only;
                ``"dense"`` for one entry per positive, all of which a step may change; ``"scalar"`` for a tensor of
                shape ``()``, or ``(K,)`` for K labels; ``"vector"`` for a short tensor with the entries of ``fill``.
            fill: initial value; one per entry for a vector.
            dtype: fixed dtype, for counters; ``None`` takes the dtype given to :meth:`setup`.
        """
        self._specs[name] = StateSpec(kind, fill, dtype)

    @property
    def declared(self) -> frozenset[str]:
        """Names of the state that is declared."""
        return frozenset(self._specs)

    def remove_state(self, name: str) -> None:
        """Take a declaration back."""
        del self._specs[name]

    def setup(
        self,
        num_positives: int | Sequence[int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the declared state.

        Args:
            num_positives: number of positive training examples; ``index`` runs over ``0 .. num_positives - 1``. A
                sequence of K numbers stands for K labels, also if K is 1.
            device: where the state lives; the default device if ``None``.
            dtype: ``torch.float32`` or ``torch.float64``.

        Raises:
            ArgumentError: if ``num_positives`` is, or holds, no whole number of at least 1, or ``dtype`` is a
                half-precision type.
        """
        several = isinstance(num_positives, Sequence) and not isinstance(num_positives, str)
        counts: Any = num_positives if several else (num_positives,)
        if not counts or not all(is_whole(count) and count >= 1 for count in counts):
            msg = (
                "Expected `num_positives` to be the number of positive training examples, at least 1, or a list of "
                f"them for several labels, but got {num_positives!r}. Count them: `int((labels == 1).sum())`."
            )
            raise ArgumentError(msg)
        if dtype not in (torch.float32, torch.float64):
            msg = (
                f"Expected `dtype` to be torch.float32 or torch.float64, but got {dtype}: "
                "a running mean in half precision stops moving."
            )
            raise ArgumentError(msg)
        sizes = tuple(int(count) for count in counts)
        self.num_positives, self.task_sizes, self._per_task = sum(sizes), sizes if several else None, {}
        if several:
            ends = torch.tensor([0, *sizes], device=device).cumsum(0)
            self._per_task = {"offsets": ends[:-1], "counts": ends.diff()}
        for name, spec in self._specs.items():
            values = torch.tensor(spec.fill, device=device, dtype=spec.dtype or dtype)
            if spec.kind in ("positive", "dense"):
                values = values.repeat(self.num_positives + several)
            elif several:
                values = values.repeat(len(sizes))
            setattr(self, name, values)

    def to(self, device: torch.device | str) -> Self:
        """Move the state; returns itself."""
        for name in self._specs:
            if hasattr(self, name):
                setattr(self, name, getattr(self, name).to(device))
        self._per_task = {name: value.to(device) for name, value in self._per_task.items()}
        return self

    @property
    def num_tasks(self) -> int | None:
        """K if :meth:`setup` was given a sequence of K numbers; ``None`` if it was given one number."""
        return None if self.task_sizes is None else len(self.task_sizes)

    @property
    def task_counts(self) -> Tensor:
        """Number of positives of each of several labels, int64 ``(K,)``."""
        return self._per_task["counts"]

    def of_each_positive(self, values: float | Tensor) -> Any:
        """Values of the labels, ``(K,)``, repeated for all entries of per-positive state; one number as it is."""
        if self.task_sizes is None or not isinstance(values, Tensor):
            return values
        repeated = values.repeat_interleave(self._per_task["counts"], output_size=self.num_positives)
        return torch.cat([repeated, values[-1:]])  # the spare entry

    def entries(self, state: Tensor, task: int | None = None) -> Tensor:
        """A view of per-positive state: all entries but the spare one, or those of one label."""
        if self.task_sizes is None:
            return state
        start = 0 if task is None else sum(self.task_sizes[:task])
        return state[start : -1 if task is None else start + self.task_sizes[task]]

    def place(self, index: Tensor, pos_mask: Tensor) -> Tensor:
        """Where the state of K labels keeps the positives that are ``index`` ``(K, S)`` of their label."""
        spare = torch.full_like(index, self.num_positives or 0)
        return torch.where(pos_mask, index + self._per_task["offsets"].unsqueeze(-1), spare)

    def state_dict(self) -> dict[str, Any]:
        """All that the algorithm remembers, as tensors and primitives (loadable with ``weights_only=True``)."""
        self._require_setup()
        return {"num_positives": self._counts(), **{name: getattr(self, name) for name in self._specs}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place.

        Raises:
            CheckpointError: if the state belongs to another number of positives or another algorithm.
        """
        self._require_setup()
        self.check_num_positives(state)
        names = set(state) - {"num_positives"}
        if names != set(self._specs):
            msg = (
                f"The checkpoint holds the state {sorted(names)}, but {type(self).__name__} remembers "
                f"{sorted(self._specs)}: it was written by another algorithm."
            )
            raise CheckpointError(msg)
        for name in self._specs:
            getattr(self, name).copy_(state[name])

    def check_num_positives(self, state: dict[str, Any]) -> None:
        """Raise :class:`CheckpointError` if ``state`` belongs to another number of positives."""
        if state.get("num_positives") != self._counts():
            msg = (
                f"The checkpoint was written for {state.get('num_positives')} positive examples, but the training set "
                f"has {self._counts()}. Resume on the same data, or pass the checkpoint as `init_from` to start a new "
                "run from its weights."
            )
            raise CheckpointError(msg)

    def snapshot(self, index: Tensor) -> dict[str, Tensor]:
        """Copy what a step on ``index``, of several labels a :meth:`place`, may change; for :meth:`rollback`."""
        return {
            name: getattr(self, name)[as_index(index)] if spec.kind == "positive" else getattr(self, name).clone()
            for name, spec in self._specs.items()
        }

    def rollback(self, index: Tensor, snapshot: dict[str, Tensor]) -> None:
        """Undo a step on ``index``, as if it had not been taken."""
        for name, spec in self._specs.items():
            state: Tensor = getattr(self, name)
            if spec.kind == "positive":
                put_(state, as_index(index, state.device), snapshot[name])
            else:
                state.copy_(snapshot[name])

    def scalar_sum(self) -> Tensor | float:
        """Sum of the scalar state, shape ``()``; 0.0 if there is none. Costs nothing in the number of positives.

        It is not finite where a summand is not, or where one is about to overflow: one test of it stands for all.
        """
        self._require_setup()
        small: list[Tensor] = [getattr(self, n) for n, spec in self._specs.items() if spec.kind in ("scalar", "vector")]
        sums = [state.sum() if state.ndim else state for state in small if state.is_floating_point()]
        return sum(sums[1:], start=sums[0]) if sums else 0.0

    def non_finite_states(self) -> list[str]:
        """Names of states that hold nan or infinity; looks at all entries and waits for the device."""
        states = {name: getattr(self, name) for name in self._specs}
        return [n for n, s in states.items() if s.is_floating_point() and not bool(torch.isfinite(s).all())]

    def _counts(self) -> int | list[int] | None:
        return self.num_positives if self.task_sizes is None else list(self.task_sizes)

    def _require_setup(self) -> None:
        if self.num_positives is None:
            msg = f"{type(self).__name__} has no state yet: call `setup(num_positives)` first."
            raise ArgumentError(msg)
