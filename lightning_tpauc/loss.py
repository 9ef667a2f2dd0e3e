"""Two-way partial AUC as a loss for any training loop: no ids, no data module, no set-up."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lightning_tpauc.algorithms import STACO
from lightning_tpauc.distributed import gather_scores
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import as_tensor, check_count, is_real, require_range
from lightning_tpauc.functional.pairwise import TaskMasks, common_dtype, full_precision, widest_float
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.training.guards import advise, is_squashed
from lightning_tpauc.training.rectangle import HOLD_AT


class TPAUCLoss(nn.Module):
    r"""STACO with tracked dual variables as a loss module: ``loss(scores, labels)``, in any loop.

    Each call in training mode with gradients enabled is one step of :class:`~lightning_tpauc.algorithms.STACO` with
    ``duals="tracked"`` on the positives and negatives of the batch, and has its loss and gradient. What it remembers,
    two border scores and the unit of the loss for each label, and how far the rectangle has come, are buffers: they
    move, are saved and loaded with the module, or with a model that holds it. In evaluation mode and under
    ``torch.no_grad()`` the value is the same. The buffers stay then, and where a step makes something nan or infinite.

    A label without a positive or without a negative in the batch adds nothing to the loss, its scores have zero
    gradients, and its buffers stay. Missing labels add nothing, either. Batches need enough of both: of S positives
    only ``(1 - min_tpr) * S`` are in the rectangle. If positives are rare, draw them more often.

    Training goes best if the rectangle shrinks from the whole square to yours. The loop says how far it is,
    ``loss.progress = step / total_steps``; from 0.5 on it has its final size. With one label it waits where its loss
    comes near that of a model that gives all the same score, as in a corner that is out of reach, and goes on once the
    loss is lower. If ``progress`` is not set, it has its final size from the first step.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].
        surrogate: name of a monotone surrogate, or a :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the surrogate, in units of the score; 0.25 suits scores that went through a sigmoid.
        scale: factor inside the logistic surrogate.
        num_labels: number K of labels, with a column of scores each; the loss is the mean over them.
        gather: whether a positive is paired with the negatives of all processes, or only with those of its own process.
            If so, every process has the same loss, and the mean of their gradients, which DDP takes, is the gradient of
            one process with the joint batch. The processes exchange batch sizes, which waits for the device.

    Shapes:
        - scores: float tensor ``(N,)`` or ``(N, 1)``, raw, larger meaning more positive; the logits of two classes,
          ``(N, 2)``, of which the difference counts; ``(N, K)`` for K labels.
        - labels: 1, 0, or nan or -1 where the label is not known; ``(N,)`` or ``(N, 1)``, ``(N, K)`` for K labels. On
          an accelerator their values are checked at the first call only, and in compiled code never.
        - output: scalar tensor, in float32 or the dtype of the scores if that is wider, also under autocast.

    Raises:
        ArgumentError: if an argument is out of range, the surrogate is not monotone, shapes do not fit, or a label has
            another value.

    Example:
        >>> loss = TPAUCLoss(min_tpr=0.5, max_fpr=0.5)
        >>> loss.progress = 1.0
        >>> scores = torch.tensor([0.2, 0.9, 0.1, 0.8], requires_grad=True)
        >>> loss(scores, torch.tensor([1, 1, 0, 0])).backward()
        >>> scores.grad
        tensor([-0.8000,  0.0000,  0.0000,  0.8000])
    """

    tightness: Tensor
    seen: Tensor
    lag: Tensor
    ratio: Tensor

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        surrogate: str | Surrogate = "hinge",
        margin: float = 1.0,
        scale: float = 1.0,
        *,
        num_labels: int = 1,
        gather: bool = False,
    ) -> None:
        super().__init__()
        check_count(num_labels, "num_labels", 1)
        self.algorithm = STACO(min_tpr, max_fpr, surrogate=surrogate, margin=margin, scale=scale, duals="tracked")
        self.num_labels, self.gather = int(num_labels), gather
        self._progress: float | None = None
        self._looked = False
        self._of_one = copy.deepcopy(self.algorithm)
        self._prepare()
        for name in self.algorithm.state_specs:
            self.register_buffer(name, getattr(self.algorithm, name))
        # the rectangle's; the progress set last, 1 before the first; how far the rectangle lags behind it; and the
        # running mean of the loss over that of a model with equal scores, which is known of one label
        starts = {"tightness": 1.0, "seen": 1.0, "lag": 0.0, "ratio": float(num_labels == 1)}
        for name, start in starts.items():
            self.register_buffer(name, torch.full((), start))

    @property
    def progress(self) -> float | None:
        """The share of the run that is over, set by the loop, in [0, 1], else ``None``. More, but below 2, is 1."""
        return self._progress

    @progress.setter
    def progress(self, share: float) -> None:
        self._progress = require_range("progress", 1.0 if is_real(share) and 1.0 < share < 2.0 else share, 0.0, 1.0)
        ahead = (self._progress - self.seen).clamp(min=0.0)  # 0 also where a run begins anew, or goes back a little
        waits = 2.0 * ahead * ((self.ratio >= HOLD_AT).to(ahead) + (self.ratio > 1.0))  # above 1 it goes back
        self.lag.add_(waits).clamp_(max=2.0 * self._progress)
        self.tightness.copy_((2.0 * self._progress - self.lag).clamp(max=1.0))
        self.seen.fill_(self._progress)

    def extra_repr(self) -> str:
        """The settings."""
        return repr(self.algorithm)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """One step on a batch; see the class."""
        given, (scores, labels) = scores, self._aligned(scores, labels)
        if self.tightness.device != scores.device:
            self.to(scores.device)
        if not torch.compiler.is_compiling():
            self._look(given, labels)
        with full_precision(scores.device.type):
            scores, is_pos, is_neg = scores.to(common_dtype(scores)), labels == 1, labels == 0
            if self.gather:
                known, none = is_pos | is_neg, is_pos[:, :0]
                every = gather_scores((scores, scores[:, :0], None), is_pos.long(), TaskMasks(known, none), None)
                assert every.masks is not None  # noqa: S101 - as they were given
                scores, known = every.pos_scores, every.masks.pos
                is_pos, is_neg = known & (every.index == 1), known & (every.index == 0)
            return self._step(scores, TaskMasks(is_pos, is_neg))

    def _step(self, scores: Tensor, masks: TaskMasks) -> Tensor:
        if not scores.numel():
            return scores.sum()
        # of one label a CPU selects the scores; elsewhere their number would have to come from the device
        selects = self.num_labels == 1 and scores.device.type == "cpu" and not torch.compiler.is_compiling()
        algorithm = self._of_one if selects else self.algorithm
        before = {name: getattr(self, name) for name in algorithm.state_specs}
        for name, value in before.items():
            setattr(algorithm, name, (value[0] if selects else value).clone())
        if selects:
            pos, neg = scores[masks.pos], scores[masks.neg]
            if not pos.numel() or not neg.numel():
                return scores[:, :0].sum()
            algorithm.tightness = self.tightness.item()
            loss = algorithm.step(pos, neg, neg, torch.zeros_like(pos, dtype=torch.int64))
            loss = loss.clone()  # a view of its own function could not be divided in place, as some loops do
        else:
            tightness, low, high = self.tightness.to(widest_float(scores.device)), algorithm.min_tpr, algorithm.max_fpr
            thetas = torch.stack([1.0 - tightness * low, 1.0 - tightness * (1.0 - high)])
            algorithm.of_tasks["thetas"] = thetas.unsqueeze(-1).expand(2, self.num_labels)
            loss = algorithm.joint_loss(scores, scores, scores, torch.zeros_like(masks.pos, dtype=torch.int64), masks)
        if self.training and torch.is_grad_enabled():
            finite = (loss.detach() + algorithm.scalar_sum()).isfinite()  # half precision may overflow in a step
            for name, value in before.items():
                value.copy_(torch.where(finite, getattr(algorithm, name), value))
            if self.num_labels == 1:
                # an outlier's may be 10^6, which a mean would remember for hundreds of steps; most are below 4
                ratio = (loss.detach() * algorithm.loss_scale / self.algorithm.constant_loss).clamp(max=4.0)
                counts = finite & masks.pos.any() & masks.neg.any()
                self.ratio.lerp_(torch.where(counts, ratio, self.ratio).to(self.ratio).squeeze(), 0.05)
        return loss

    def _aligned(self, scores: Tensor, labels: Any) -> tuple[Tensor, Tensor]:
        """Both as ``(K, N)``."""
        labels, several = as_tensor(labels, "labels", scores.device), self.num_labels
        number = labels.shape[0] if labels.ndim else 0
        if several == 1 and scores.shape == (number, 2):
            scores = scores[:, 1] - scores[:, 0]
        fitting = ((number,), (number, 1)) if several == 1 else ((number, several),)
        if not scores.is_floating_point() or tuple(scores.shape) not in fitting or tuple(labels.shape) not in fitting:
            wanted = "(N,) or (N, 1)" if several == 1 else f"(N, {several})"
            raise ArgumentError(
                f"Expected `scores`, floating, and `labels` of shape {wanted}, since num_labels={several}, but got "
                f"{scores.dtype} {tuple(scores.shape)} and {tuple(labels.shape)}. Several labels need `num_labels`, "
                "and K classes are K labels: `torch.nn.functional.one_hot(labels, K)`."
            )
        return scores.reshape(number, several).T.contiguous(), labels.reshape(number, several).T

    def _look(self, scores: Tensor, labels: Tensor) -> None:
        """Check the labels, and say at first what makes a training worse."""
        if labels.device.type == "cpu" or not self._looked:
            wrong = labels[~((labels == 1) | (labels == 0) | (labels == -1) | labels.isnan())]
            if wrong.numel():
                raise ArgumentError(
                    f"Expected `labels` to hold 1, 0, and -1 or nan where nothing is known, but got {wrong[0].item()}. "
                    "Convert other codes: `(labels == positive).long()`."
                )
        if self._looked or not (self.training and scores.requires_grad):
            return
        self._looked = True
        if (labels == -1).any() and not (labels == 0).any():
            advise("`labels` hold -1, which means not known, and no 0: pass `(labels == 1).long()` if -1 is a class.")
        if self._progress is None and (self.algorithm.min_tpr, self.algorithm.max_fpr) != (0.0, 1.0):
            advise(
                "`TPAUCLoss.progress` was not set: the rectangle has its final size from the first step. Set "
                "`loss.progress = step / total_steps` before each step, and it shrinks over the first half of the run."
            )
        if is_squashed(scores) and self.algorithm.margin == 1.0:
            advise(
                "The scores come out of a sigmoid or softmax: pass those from before it to `TPAUCLoss`, or "
                "`margin=0.25`, since no pair of probabilities reaches a margin of 1."
            )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the buffers as torch does, but keep running means out of half precision."""
        kept = {name: getattr(self, name) for name in self._buffers}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for name, value in kept.items():
            if getattr(self, name).dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, value.to(self.tightness.device))
        self._prepare(device=self.tightness.device, dtype=self.tightness.dtype)
        return self

    def _prepare(self, **how: Any) -> None:
        self.algorithm.setup([1] * self.num_labels, **how)  # nothing is kept for a positive
        self._of_one.setup(1, **how)
