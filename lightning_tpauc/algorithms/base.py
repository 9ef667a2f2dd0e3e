"""What every training method shares: declared state, one calling convention, rectangles, stages, unit of the loss.

An algorithm is a plain object, not an :class:`torch.nn.Module`: its state (dual weights, thresholds) belongs to
training and must be touched neither by precision plugins, which cast buffers to bfloat16, nor by
DistributedDataParallel, which overwrites them with rank 0's.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from lightning_tpauc.errors import ArgumentError, CheckpointError, UnsupportedError
from lightning_tpauc.functional.checks import as_index, check_choice, check_rectangle, eager, is_whole, require_range
from lightning_tpauc.functional.duals import require_monotone
from lightning_tpauc.functional.pairwise import Pairs, TaskMasks, in_play, put_, there, widest_float
from lightning_tpauc.functional.staco import loss_unit_step, tail_loss
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate

#: As many entries as an index may count are views of it.
_NOTHING = torch.zeros((), device="cpu")
#: Values of :attr:`Algorithm.tightness` at which validation evaluates the objective.
TIGHTNESS_GRID: tuple[float, ...] = tuple(k / 20 for k in range(21))


class TrainingScores(NamedTuple):
    """Scores of the training set under one set of weights, for solving the dual variables.

    Attributes:
        pos_scores: float tensor of shape ``(n_pos,)``; entry i belongs to positive i.
        neg_scores: float tensor of shape ``(m,)``: all negatives, or a sample of them.
    """

    pos_scores: Tensor
    neg_scores: Tensor


class PreviousScores(NamedTuple):
    """Scores of the same batch under the weights before the last update.

    Attributes:
        pos_scores: float tensor of shape ``(S,)``.
        neg_scores: float tensor of shape ``(B~,)``.
    """

    pos_scores: Tensor
    neg_scores: Tensor


class Task(NamedTuple):
    """One of several labels that are trained at once.

    Attributes:
        num_positives: number of its positive training examples.
        min_tpr: lower bound of its true positive rate; the algorithm's if ``None``.
        max_fpr: upper bound of its false positive rate; the algorithm's if ``None``.
        weight: its weight in the loss, at least 0; only ratios matter.
    """

    num_positives: int
    min_tpr: float | None = None
    max_fpr: float | None = None
    weight: float = 1.0


def shrunk_rectangle(min_tpr: float, max_fpr: float, tightness: float) -> tuple[float, float]:
    """The rectangle on the line from (0, 1) to ``(min_tpr, max_fpr)``.

    Example:
        >>> shrunk_rectangle(0.8, 0.2, 0.5)
        (0.4, 0.6)
    """
    if tightness == 1.0:  # exactly, not up to rounding
        return min_tpr, max_fpr
    return tightness * min_tpr, 1.0 - tightness * (1.0 - max_fpr)


class StateSpec(NamedTuple):
    """Declaration of one state tensor."""

    kind: Literal["positive", "dense", "scalar", "vector"]
    fill: float | tuple[float, ...]
    dtype: torch.dtype | None


class Algorithm(ABC):
    r"""Base class of all training methods.

    A subclass declares its state in ``__init__`` with :meth:`add_state` and implements :meth:`step`. Calling the
    algorithm performs one step on its own variables, in place, and returns a scalar whose gradient is the direction for
    the model's weights.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].

    Raises:
        ArgumentError: if the rectangle is empty or not inside the unit square.
    """

    #: Learning rate of DampedAdam where the user gives no optimizer; see benchmarks/defaults.py.
    default_lr: ClassVar[float] = 0.01
    #: Share of the run in which the learning rate grows where the user says nothing, and the run is no short one.
    default_warmup: ClassVar[float] = 0.1
    #: What the weights continue from after a stage; the next anchor is the stage's average either way.
    stage_iterate: ClassVar[Literal["average", "last"]] = "average"
    #: Whether the algorithm wants raw scores even where the model's ``score_activation`` is a sigmoid.
    takes_logits: ClassVar[bool] = False
    #: Whether the algorithm is made for scores in [0, 1] and may go wrong on others.
    takes_probabilities: ClassVar[bool] = False
    #: Whether training may begin with the unit square and shrink it to the rectangle that was asked for.
    can_shrink_rectangle: ClassVar[bool] = False
    #: Whether a step takes several labels at once; then :meth:`step` takes ``masks``.
    takes_tasks: ClassVar[bool] = False
    #: Which argument is the step size of which state; an error about that state names it.
    step_sizes: ClassVar[dict[str, str]] = {}

    #: How batches are drawn: positives and negatives apart, uniformly from the training set, or all of it.
    sampling: Literal["pos_neg", "uniform", "full"] = "pos_neg"
    #: Whether a step uses a second, independent batch of negatives.
    needs_dual_negatives: bool = False
    #: What a step needs under the weights before the last update, on the same batch; see ``previous``.
    needs_previous: Literal["scores", "gradients"] | None = None
    #: Whether training restarts from averaged iterates after every stage.
    has_stages: bool = False
    #: Whether the returned solution is an average of the iterates.
    averages_iterates: bool = False
    #: Whether the next batch will do where :meth:`needs_scores` asks for scores that can't be had.
    starts_from_batch: bool = False

    if TYPE_CHECKING:  # what is declared by `add_state`

        def __getattr__(self, name: str) -> Tensor: ...

    def __init__(self, min_tpr: float = 0.5, max_fpr: float = 0.5) -> None:
        self.min_tpr, self.max_fpr = check_rectangle(min_tpr, max_fpr)
        #: Number of positives of all labels together; ``None`` before :meth:`setup`.
        self.num_positives: int | None = None
        #: What :meth:`setup` was told about each of several labels; ``None`` for one label.
        self.tasks: tuple[Task, ...] | None = None
        #: Weight of each training positive, float ``(n_pos,)``; ``None`` unless batches draw by weights.
        self.positive_weights: Tensor | None = None
        #: Current learning rate over the initial one; multiplies the algorithm's own step sizes.
        self.step_scale = 1.0
        #: By how much a score grows when the model's output grows by one from 0: 1, or 0.25 behind a sigmoid.
        self.score_slope = 1.0
        self._tightness: tuple[float, ...] = (1.0,)
        #: The declared state, by name.
        self.state_specs: dict[str, StateSpec] = {}
        #: Tensors with an entry for each of several labels that no step changes, and that are not saved.
        self.of_tasks: dict[str, Tensor] = {}
        #: Attributes that are lists of numbers and saved as well, by what a checkpoint calls them.
        self._saved_lists = {"tightness": "tightness_of_tasks"} if self.can_shrink_rectangle else {}

    def __repr__(self) -> str:
        """The class, its rectangle, and the other arguments that are not at their defaults."""
        shown = {"min_tpr": repr(self.min_tpr), "max_fpr": repr(self.max_fpr)}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            text = repr(value.name if isinstance(value, Surrogate) else value)
            if text != repr(parameter.default):  # as text, since `==` of tensors is no bool
                shown[name] = text
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in shown.items())})"

    @property
    def proximal_coefficient(self) -> float:
        """The c of the term c (w - w0) in the weights' gradient; w0 are the weights at the stage's start."""
        return 0.0

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:  # noqa: ARG002
        """Whether :meth:`start` or :meth:`restart` solves the dual variables from the training scores."""
        return False

    def diagnostics(self) -> dict[str, Tensor]:
        """Numbers to log, which tell how the run goes; may cost O(n_pos)."""
        return {}

    # ---------------------------------------------------------------- rectangles

    @property
    def asked_rectangles(self) -> list[tuple[float, float]]:
        """``(min_tpr, max_fpr)`` that was asked for, for each label."""
        return [self._asked(task) for task in self.tasks or (Task(0),)]

    def _asked(self, task: Task) -> tuple[float, float]:
        return (
            self.min_tpr if task.min_tpr is None else task.min_tpr,
            self.max_fpr if task.max_fpr is None else task.max_fpr,
        )

    @property
    def tightness(self) -> float:
        """How far the trained rectangle has shrunk: 0 is the unit square, 1 is ``(min_tpr, max_fpr)``.

        For several labels this is the mean. Setting it sets the tightness of every label.
        """
        return self._tightness[0] if len(set(self._tightness)) == 1 else fmean(self._tightness)

    @tightness.setter
    def tightness(self, value: float) -> None:
        self.tightness_of_tasks = (value,) * len(self.asked_rectangles)

    @property
    def tightness_of_tasks(self) -> tuple[float, ...]:
        """:attr:`tightness` of each label."""
        return self._tightness

    @tightness_of_tasks.setter
    def tightness_of_tasks(self, values: Sequence[float]) -> None:
        self._tightness = tuple(values)
        if self.tasks is not None:  # on the device already, so that no step has to send them there
            device = self.of_tasks["weights"].device
            exact = torch.tensor(self.rectangles, dtype=widest_float(device), device=device)
            self.of_tasks["thetas"] = torch.stack([1.0 - exact[:, 0], exact[:, 1]])

    @property
    def rectangles(self) -> list[tuple[float, float]]:
        """The rectangle that is trained at the moment, for each label."""
        return [shrunk_rectangle(*asked, t) for asked, t in zip(self.asked_rectangles, self._tightness, strict=True)]

    @property
    def rectangle(self) -> tuple[float, float]:
        """The rectangle that is trained at the moment. It begins as (0, 1) and shrinks to ``(min_tpr, max_fpr)``.

        With several labels: that of a label without a rectangle of its own, shrunk as far as the mean of all.
        """
        return shrunk_rectangle(self.min_tpr, self.max_fpr, self.tightness)

    def thetas(self, dtype: torch.dtype | None = None) -> tuple[float | Tensor, float | Tensor]:
        r""":math:`(\theta_0, \theta_1)` of the trained rectangle.

        Numbers for one label; for several, tensors ``(K,)`` of ``dtype`` or the device's most precise one.
        """
        if self.tasks is None:
            min_tpr, max_fpr = self.rectangle
            return 1.0 - min_tpr, max_fpr
        theta0, theta1 = self.of_tasks["thetas"].to(dtype=dtype).unbind()
        return theta0, theta1

    # ---------------------------------------------------------------- state

    def add_state(
        self,
        name: str,
        kind: Literal["positive", "dense", "scalar", "vector"],
        fill: float | tuple[float, ...] = 0.0,
        dtype: torch.dtype | None = None,
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
        self.state_specs[name] = StateSpec(kind, fill, dtype)

    def setup(
        self,
        num_positives: int | Sequence[int | Task],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the declared state, for one label or for several.

        Per-positive state of K labels holds the labels one after the other. One spare entry at its end takes the values
        that pad a batch.

        Args:
            num_positives: number of positive training examples, or a sequence of these numbers for several labels, also
                if it holds one. A label with a rectangle or a weight of its own is given as a :class:`Task`.
            device: where the state lives; the default device if ``None``.
            dtype: ``torch.float32`` or ``torch.float64``.

        Raises:
            ArgumentError: if a number is below 1, ``dtype`` is a half-precision type, or a rectangle or weight is out
                of range.
            UnsupportedError: if several labels are given to a method that takes one.
        """
        given: Any = num_positives
        given = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else given
        several = isinstance(given, Sequence) and not isinstance(given, str)
        if several and not self.takes_tasks:
            raise UnsupportedError(f"{type(self).__name__} trains one label: pass one number as `num_positives`.")
        tasks = [task if isinstance(task, Task) else Task(task) for task in (given if several else [given])]
        if not tasks or not all(is_whole(task.num_positives) and task.num_positives >= 1 for task in tasks):
            raise ArgumentError(
                "Expected `num_positives` to be the number of positive training examples, at least 1, or a list of "
                f"them for several labels, but got {given!r}. Count them: `int((labels == 1).sum())`."
            )
        if dtype not in (torch.float32, torch.float64):
            raise ArgumentError(
                f"Expected `dtype` to be torch.float32 or torch.float64, but got {dtype}: running means need it."
            )
        for task in tasks:
            check_rectangle(*self._asked(task))
        weights = [require_range("weight", task.weight, 0.0) for task in tasks]
        if not any(weights):
            raise ArgumentError(f"Expected a `weight` above 0 of one label at least, but got {weights}.")
        self.choose_state(len(tasks))
        sizes = [int(task.num_positives) for task in tasks]
        self.num_positives, self.tasks, self.of_tasks = sum(sizes), tuple(tasks) if several else None, {}
        if several:
            ends = torch.tensor([0, *sizes], device=device).cumsum(0)
            shares = torch.tensor([weight / sum(weights) for weight in weights], device=device, dtype=dtype)
            self.of_tasks = {"offsets": ends[:-1], "counts": ends.diff(), "weights": shares}
        for name, spec in self.state_specs.items():
            values = torch.tensor(spec.fill, device=device, dtype=spec.dtype or dtype)
            if spec.kind in ("positive", "dense"):
                values = values.repeat(self.num_positives + several)
            elif several:
                values = values.repeat(len(sizes))
            setattr(self, name, values)
        self.positive_weights = None
        self.tightness = self.tightness  # the mean, for as many labels as there are now

    def choose_state(self, num_labels: int) -> None:
        """Called by :meth:`setup` before it allocates, for state that depends on the number of labels."""

    def to(self, device: torch.device | str) -> Self:
        """Move the state; returns itself."""
        for name in self.state_specs:
            if hasattr(self, name):
                setattr(self, name, getattr(self, name).to(device))
        self.of_tasks = {name: value.to(device) for name, value in self.of_tasks.items()}
        return self

    @property
    def task_sizes(self) -> tuple[int, ...] | None:
        """Number of positives of each of several labels; ``None`` for one label."""
        return None if self.tasks is None else tuple(int(task.num_positives) for task in self.tasks)

    def of_each_positive(self, values: float | Tensor) -> Any:
        """Values of the labels, ``(K,)``, repeated for all entries of per-positive state; one number as it is."""
        if self.tasks is None or not isinstance(values, Tensor):
            return values
        repeated = values.repeat_interleave(self.of_tasks["counts"], output_size=self.num_positives)
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
        return torch.where(pos_mask, index + self.of_tasks["offsets"].unsqueeze(-1), spare)

    def state_dict(self) -> dict[str, Any]:
        """All that the algorithm remembers, as tensors and primitives (loadable with ``weights_only=True``)."""
        self._require_setup()
        lists = {name: list(getattr(self, attribute)) for name, attribute in self._saved_lists.items()}
        return {"num_positives": self._counts(), **{name: getattr(self, name) for name in self.state_specs}, **lists}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place.

        Raises:
            CheckpointError: if the state belongs to another number of positives or another algorithm.
        """
        self._require_setup()
        if state.get("num_positives") != self._counts():
            raise CheckpointError(
                f"The checkpoint was written for {state.get('num_positives')} positive examples, but the training set "
                f"has {self._counts()}. Resume on the same data, or pass it as `init_from` to use its weights alone."
            )
        names = set(state) - {"num_positives", *self._saved_lists}
        if names != set(self.state_specs):
            raise CheckpointError(
                f"The checkpoint has {sorted(names)}, but {type(self).__name__} remembers {sorted(self.state_specs)}: "
                "it was written by another algorithm, or with other arguments, such as `duals`."
            )
        for name in self.state_specs:
            getattr(self, name).copy_(state[name])
        for name, attribute in self._saved_lists.items():
            setattr(self, attribute, list(state[name]))

    def snapshot(self, index: Tensor) -> dict[str, Tensor]:
        """Copy what a step on ``index``, of several labels a :meth:`place`, may change; for :meth:`rollback`."""
        states = {name: (getattr(self, name), spec.kind) for name, spec in self.state_specs.items()}
        return {name: x[as_index(index)] if kind == "positive" else x.clone() for name, (x, kind) in states.items()}

    def rollback(self, index: Tensor, snapshot: dict[str, Tensor]) -> None:
        """Undo a step on ``index``, as if it had not been taken."""
        for name, spec in self.state_specs.items():
            state: Tensor = getattr(self, name)
            if spec.kind == "positive":
                put_(state, as_index(index, state.device), snapshot[name])
            else:
                state.copy_(snapshot[name])

    def scalar_sum(self) -> Tensor | float:
        """Sum of the scalar state, shape ``()``; 0.0 if there is none. Costs nothing in the number of positives.

        It is not finite where a summand is not, or where one is about to overflow: one test of it stands for all.
        """
        small = [getattr(self, n) for n, spec in self.state_specs.items() if spec.kind in ("scalar", "vector")]
        return sum((state.sum() if state.ndim else state for state in small if state.is_floating_point()), 0.0)

    def non_finite_states(self) -> list[str]:
        """Names of states that hold nan or infinity; looks at all entries and waits for the device."""
        states = {name: getattr(self, name) for name in self.state_specs}
        return [n for n, s in states.items() if s.is_floating_point() and not bool(torch.isfinite(s).all())]

    def _counts(self) -> int | list[int] | None:
        return self.num_positives if self.task_sizes is None else list(self.task_sizes)

    def _require_setup(self) -> None:
        if self.num_positives is None:
            raise ArgumentError(f"{type(self).__name__} has no state yet: call `setup(num_positives)` first.")

    # ---------------------------------------------------------------- one step

    @eager
    def __call__(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        dual_neg_scores: Tensor | None = None,
        index: Tensor | None = None,
        *,
        previous: PreviousScores | None = None,
        masks: TaskMasks | None = None,
    ) -> Tensor:
        """Take one step on the algorithm's variables and return the loss for the model's weights.

        Args:
            pos_scores: float tensor ``(S,)``, scores of the sampled positives.
            neg_scores: float tensor ``(B~,)``, scores of the negatives.
            dual_neg_scores: float tensor ``(B,)``, scores of the second, independent negatives; only algorithms with
                :attr:`needs_dual_negatives` read it.
            index: integer tensor, array or list ``(S,)``, which positives these are, in ``0 .. num_positives - 1``.
                Each may come only once. That is not checked, since a check would wait for the device; if one comes
                twice, both its updates count.
            previous: the same batch under the weights before the last update, for algorithms with
                :attr:`needs_previous`; ``None`` at the first step.
            masks: for K labels, which of their scores are present. Scores and ``index`` then have a leading dimension
                K, and ``index`` counts the positives of each label from 0. A label without a positive or without a
                negative is not in play: none of its variables changes. Uniformly drawn batches have all labels in play.

        Returns:
            Scalar tensor, differentiable with respect to ``pos_scores`` and ``neg_scores``.

        Raises:
            ArgumentError: if shapes do not fit together, if ``index`` holds no integers or, on the CPU, is out of
                range, if a class is missing from a batch that holds both by design, or if :meth:`setup` was not called.
            UnsupportedError: if ``previous`` is given to an algorithm without :attr:`needs_previous`.
        """
        self._require_setup()
        if previous is not None and self.needs_previous is None:
            raise UnsupportedError(f"{type(self).__name__} does not use the previous weights: leave out `previous`.")
        second: Any = dual_neg_scores if self.needs_dual_negatives else neg_scores
        places: Any = index
        if index is not None and getattr(index, "dtype", None) != torch.int64:
            places = as_index(index, getattr(pos_scores, "device", None))
        self._check_shapes(pos_scores, neg_scores, second, places, masks)
        self._check_range(places, masks)
        if masks is not None:
            return self.joint_loss(pos_scores, neg_scores, second, places, masks)
        step: Any = self.step  # takes `previous` where `needs_previous` says so
        return step(pos_scores, neg_scores, second, places, **{} if previous is None else {"previous": previous})

    def _check_shapes(self, pos: Any, neg: Any, second: Any, index: Any, masks: TaskMasks | None) -> None:
        """Raise :class:`ArgumentError` unless the arguments of a step fit together."""
        if (masks is None) != (self.tasks is None):
            raise ArgumentError(
                f"Expected `masks` for several labels and only for these, but `setup` was for {self._counts()}."
            )
        leading = () if self.tasks is None else (len(self.tasks),)
        for name, values, remedy in (
            ("pos_scores", pos, "Drop a trailing dimension with `.squeeze(-1)`."),
            ("neg_scores", neg, "Drop a trailing dimension with `.squeeze(-1)`."),
            ("dual_neg_scores", second, "Draw a second batch (`num_dual_neg`), or set `share_negatives=True`."),
            ("index", index, "Number the training positives from 0, and pass the numbers of those in `pos_scores`."),
        ):
            shape = tuple(values.shape) if isinstance(values, Tensor) else ()
            if not shape or shape[:-1] != leading or (values is index and shape != tuple(pos.shape)):
                wanted = "".join(f"{size}, " for size in leading)
                raise ArgumentError(
                    f"Expected `{name}` of shape ({wanted}number of them), but got {shape or values}. {remedy}"
                )
        if masks is None and self.sampling != "uniform" and not (pos.numel() and neg.numel() and second.numel()):
            raise ArgumentError(
                f"{type(self).__name__} needs positives and negatives in every batch, but got {pos.numel()} and "
                f"{min(neg.numel(), second.numel())}. Draw the classes apart, as PosNegDataModule does."
            )

    def _check_range(self, index: Tensor, masks: TaskMasks | None) -> None:
        """Raise :class:`ArgumentError` if a positive is none of its label's; on the CPU, where nobody has to wait."""
        if index.device.type != "cpu":
            return
        if masks is None:
            try:
                # no value is read, so that a training step waits for none
                _NOTHING.expand(self.num_positives or 0).index_select(0, index)
                return
            except IndexError:
                pass
        sizes = self.task_sizes or (self.num_positives or 0,)
        rows = index.reshape(len(sizes), -1)
        wrong = (rows < 0) | (rows >= torch.tensor(sizes).unsqueeze(-1))
        if masks is not None:
            wrong &= masks.pos
        if bool(wrong.any()):
            label = int(wrong.nonzero()[0, 0])
            which = "" if masks is None else f" for label {label}"
            raise ArgumentError(
                f"Expected `index` to be in 0 .. {sizes[label] - 1}{which}, since `setup(num_positives="
                f"{self._counts()})` was called, but got {int(rows[wrong][0])}. Number the training positives from 0."
            )

    def joint_loss(self, pos: Tensor, neg: Tensor, second: Tensor, index: Tensor, masks: TaskMasks) -> Tensor:
        """One step of all labels; the loss is their weighted mean, in which those that are not in play count as 0."""
        apart = self.sampling != "uniform"
        if not self.needs_dual_negatives:
            masks = masks._replace(dual_neg=masks.neg)
        if apart:
            ready = masks.neg.any(-1, keepdim=True) & masks.with_dual_negatives.neg.any(-1, keepdim=True)
            masks = masks._replace(pos=masks.pos & ready)
        pos, neg = there(pos, masks.pos), there(neg, masks.neg)
        second = there(second, masks.dual_neg) if self.needs_dual_negatives else neg
        # `takes_tasks` promises that it takes masks
        losses = self.step(pos, neg, second, self.place(index, masks.pos), masks=masks)  # type: ignore[call-arg]
        losses = in_play(losses, 0.0, masks) if apart else losses
        return (losses * self.of_tasks["weights"]).sum()

    @abstractmethod
    def step(self, pos_scores: Tensor, neg_scores: Tensor, dual_neg_scores: Tensor, index: Tensor, /) -> Tensor:
        """One step on checked arguments; see :meth:`__call__`.

        Methods with :attr:`needs_previous` take ``previous``, those with :attr:`takes_tasks` take ``masks`` as well.
        """

    # ---------------------------------------------------------------- stages

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Called once before the first step, with training scores (of each label) if :meth:`needs_scores` says so."""

    def finish_stage(self) -> None:
        """End a stage: averages become the current values and the next anchors."""

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Begin the next stage, with scores as in :meth:`start`."""


def scores_of_tasks(scores: TrainingScores | Sequence[TrainingScores]) -> Sequence[TrainingScores]:
    """Scores of each label; a sequence of one if there is one label."""
    return [scores] if isinstance(scores, TrainingScores) else scores


class PairwiseAlgorithm(Algorithm):
    r"""A method whose settings are measured in the loss of its surrogate, or absolutely.

    The unit L is a running mean of the loss on the hardest :math:`\theta_1` of the negatives; see
    :func:`~lightning_tpauc.functional.staco.loss_unit_step`. Where ``margin`` and ``scale`` are ``None``, they are
    :attr:`score_slope` and 1 over it.
    """

    loss_unit: Tensor

    def __init__(
        self,
        min_tpr: float,
        max_fpr: float,
        surrogate: str | Surrogate,
        margin: float | None,
        scale: float | None,
        step_units: Literal["loss", "absolute"],
    ) -> None:
        self._given_surrogate = surrogate
        self.margin = None if margin is None else float(margin)
        self.scale = None if scale is None else float(scale)
        super().__init__(min_tpr, max_fpr)
        check_choice(step_units, "step_units", ("loss", "absolute"))
        self.step_units = step_units
        self.add_state("loss_unit", "scalar")

    @property
    def score_slope(self) -> float:
        """By how much a score grows when the model's output grows by one from 0: 1, or 0.25 behind a sigmoid.

        Margin and scale follow it where they are not given, so that the loss bends as much behind a sigmoid as on raw
        scores. A margin of 1 behind a sigmoid would bend nowhere, since no pair reaches it.
        """
        return self._score_slope

    @score_slope.setter
    def score_slope(self, slope: float) -> None:
        self._score_slope = slope
        self.surrogate = get_surrogate(
            self._given_surrogate,
            margin=slope if self.margin is None else self.margin,
            scale=1.0 / slope if self.scale is None else self.scale,
        )
        self.constant_loss = float(self.surrogate.value(torch.zeros((), dtype=torch.float64, device="cpu")))

    def require_monotone_if_exact(self, *arguments: str) -> None:
        """Raise :class:`ArgumentError` if one of them asks for an exact solution that the surrogate does not have."""
        for name in arguments:
            if getattr(self, name) == "exact":
                require_monotone(self.surrogate, f"`{name}='exact'`")

    def diagnostics(self) -> dict[str, Tensor]:
        """The unit of the loss; 0 where nothing is measured in it."""
        return {"loss_unit": self.loss_unit.mean()}

    def update_units(self, pairs: Pairs, *, bounded: bool = False) -> tuple[Tensor | float, Tensor | float]:
        r"""Take the batch's loss into L, and return two units: of this step's step sizes, and of the weights' loss.

        They are L and :math:`\max(L, L_B)`, or 1 if step sizes are absolute. ``bounded`` ones are at least the batch's
        own loss, and at least that of a constant model. L of a label that is not in play stays, and its units are 1.
        """
        if self.step_units == "absolute":
            return 1.0, 1.0
        masks, batch_loss = pairs.masks, tail_loss(pairs, self.thetas()[1]).to(self.loss_unit.dtype)
        unit = in_play(loss_unit_step(self.loss_unit, batch_loss, self.constant_loss), self.loss_unit, masks)
        self.loss_unit = unit
        of_loss = torch.maximum(unit, batch_loss)  # an outlying batch makes no step larger
        # The last iterate, unlike an average, needs steps that get smaller where a model fits well.
        of_loss = in_play(of_loss.clamp_min(self.constant_loss) if bounded else of_loss, 1.0, masks)
        return (of_loss if bounded else in_play(unit, 1.0, masks)), of_loss
