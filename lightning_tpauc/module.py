"""The LightningModule: one forward pass, one gather, one algorithm step, one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn

from lightning_tpauc import checkpoint as checkpointing
from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.best_weights import BestWeights
from lightning_tpauc.callbacks import StageCallback, leave_average
from lightning_tpauc.checkpoint_io import check_file, use_atomic_files
from lightning_tpauc.compiled import compile_model_alone
from lightning_tpauc.data.core.batch import PosNegBatch, check_training_batch
from lightning_tpauc.distributed import JointScores, gather_scores
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import as_index, check_count, is_real
from lightning_tpauc.guard import FiniteGuard
from lightning_tpauc.hooks import duty, refuse_replaced
from lightning_tpauc.iterates import WeightIterates, assign
from lightning_tpauc.mixing import say_unused
from lightning_tpauc.optimization import OptimizedModule, make_dense
from lightning_tpauc.previous import PreviousWeights
from lightning_tpauc.rectangle_schedule import RectangleSchedule
from lightning_tpauc.schedules import step_schedulers
from lightning_tpauc.scores import ScoreMemory
from lightning_tpauc.scoring import refuse_taken
from lightning_tpauc.support import refuse_unsupported
from lightning_tpauc.weights import load_state, load_weights

__all__ = ("TPAUCModule",)

_NOT_PREPARED = (
    "The callbacks of {0} did not prepare this training: something else stands in place of `{0}.configure_callbacks` "
    "or of `StageCallback.on_train_start`. Override such hooks in a subclass, where ours run as well."
)

#: Attributes that are assigned in every step and never hold a tensor.
_PLAIN = frozenset(
    {
        "_current_fx_name",
        "_activation_checked",
        "_awaited",
        "_loss_was_logged",
        "batches_seen",
        "in_step",
        "step_skipped",
    }
)


class TPAUCModule(OptimizedModule):
    r"""Trains a model that gives one score per example to maximise two-way partial AUC.

    Three ways to use it: pass a ``backbone``; subclass it and define ``forward(inputs) -> scores``; or mix it into an
    existing LightningModule, ``class Mine(TPAUCModule, TheirModule)``, whose ``forward`` it then trains. Batches are
    :class:`~lightning_tpauc.PosNegBatch`, as :class:`~lightning_tpauc.PosNegDataModule` makes them. The loss of a step
    is logged as ``train/loss`` every ``Trainer(log_every_n_steps)`` steps and at an epoch's end.
    ``Trainer.fit(torch.compile(module))`` compiles its ``forward``, and trains to the same result.

    Args:
        backbone: maps ``inputs`` to scores of shape ``(N,)`` or ``(N, 1)``, larger meaning more positive, or to the
            logits of two classes, ``(N, 2)``, whose difference is the score; alone or as ``logits`` of the output.
            Inputs that are mappings or PyG graphs are passed by keyword where its ``forward`` names their entries.
        algorithm: the training method; STACO1 at ``min_tpr = max_fpr = 0.5`` if ``None``, which evaluates a checkpoint
            at the rectangle that it was trained for.
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. If ``None``, the mixed-in module's
            ``configure_optimizers`` is used, and without one Adam with learning rate 0.003.
        lr_scheduler: maps the optimizer to a scheduler. It drives the learning rate and, by the same factor, the
            algorithm's own step sizes. A ``ReduceLROnPlateau`` follows ``val/tpauc``, or what its ``monitor`` names.
            Without one the rate grows over the first steps (``warmup``) and then stays.
        lr_scheduler_interval: whether the scheduler steps after every ``"step"`` or every ``"epoch"``.
        warmup: share of the run in which the learning rate grows linearly to that of the optimizer, at most 4 epochs;
            only where neither ``lr_scheduler`` nor a class mixed in makes a schedule. 0 for none.
        score_activation: ``"sigmoid"`` feeds probabilities to the algorithm, as the paper does for deep models;
            ``"identity"`` feeds raw scores. Metrics rank the raw scores either way.
        gradient_clip_val: bound on the norm of the loss gradient; the proximal term is added after clipping, since it
            is a pull to the anchor like weight decay and not noise. ``None`` does not clip.
        rectangles: further (min_tpr, max_fpr) pairs to report; the algorithm's own is always reported as ``tpauc``.
        log_objective: also report the exact training objective F, on the evaluated data.
        num_positives: number of training positives; read from the data module if ``None``.
        init_from: checkpoint of another run, on whatever data, whose weights a new run starts from (fine-tuning), or a
            file of the ``state_dict`` of such a module or of a ``backbone``.
        **kwargs: passed on to the next class, for mixing in.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> import torch
        >>> module = TPAUCModule(torch.nn.Linear(22, 1), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        >>> module(torch.zeros(4, 22)).shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        warmup: float = 0.1,
        score_activation: Literal["identity", "sigmoid"] = "identity",
        gradient_clip_val: float | None = None,
        rectangles: Sequence[tuple[float, float]] = (),
        log_objective: bool = False,
        num_positives: int | None = None,
        init_from: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            lr_scheduler_interval=lr_scheduler_interval,
            warmup=warmup,
            algorithm=algorithm,
            backbone=backbone,
            score_activation=score_activation,
            rectangles=rectangles,
            log_objective=log_objective,
            **kwargs,
        )
        _check_arguments(gradient_clip_val, num_positives)
        refuse_taken(self, "gradient_clip_val", "num_positives", "init_from", "iterates", "memory", "previous")
        refuse_taken(self, "best", "rectangle_schedule", "batches_seen", "in_step", "step_loss", "step_skipped")
        self.gradient_clip_val, self.num_positives, self.init_from = gradient_clip_val, num_positives, init_from
        self._forget_training()
        self._loss_was_logged = self._has_started = self._is_trained = False
        self._restored: dict[str, Any] | None = None
        checkpointing.save_cli_hyperparameters(self)

    def _forget_training(self) -> None:
        """No run has left anything; the state of one stays after it, so that its end can be saved."""
        #: Anchor and running mean of the weights; there from a training on, until other weights are loaded.
        self.iterates: WeightIterates | None = None
        #: Scores remembered for the exact restart; there as long, if the stage callback asks for them.
        self.memory: ScoreMemory | None = None
        #: Weights before the last update; empty unless the algorithm needs them.
        self.previous = PreviousWeights()
        #: The weights that validated best; there as long, if the stage callback keeps them.
        self.best: BestWeights | None = None
        #: What shrinks the trained rectangle; there as long, if the stage callback does.
        self.rectangle_schedule: RectangleSchedule | None = None
        #: Number of training batches consumed so far; the position of the data module's sampler.
        self.batches_seen = 0
        #: Loss of the last step, whatever a subclass's ``training_step`` makes of it.
        self.step_loss = torch.zeros(())
        #: Whether a gradient scaler skipped the last step, because of infinite gradients.
        self.step_skipped = False
        #: Whether a training step goes on, of which the state holds a part already.
        self.in_step = False

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module looks for parameters, modules and buffers in whatever is assigned, and Lightning assigns the name of
        # the hook it enters or leaves some thirty times a step.
        if name in _PLAIN:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---------------------------------------------------------------- training

    @duty("before")
    def on_fit_start(self) -> None:
        """Take the weights of ``init_from``, in the first run of the module and unless that is resumed."""
        self._loss_was_logged = False
        self._blind_said = set()
        first, self._has_started = not self._has_started, True
        if self.init_from is not None and self._restored is None and first:
            load_weights(self, self.init_from)
            self._is_trained = True
        if self._restored is None:
            self.trained_start.prepare(self.trainer, is_trained=self._is_trained or self.iterates is not None)

    @duty("required", cooperative=False)
    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """One step of the algorithm and of the optimizer; a subclass's own calls it, and returns what it likes.

        Nothing in here waits for the device, but the gradient scaler of ``precision="16-mixed"``, once a step.
        """
        check_training_batch(batch)
        if self.iterates is None:
            raise UnsupportedError(_NOT_PREPARED.format(type(self).__name__))
        optimizer = self.single_optimizer()
        self.in_step = True
        self.algorithm.step_scale = self.step_scale(optimizer)
        searches = isinstance(optimizer.optimizer, torch.optim.LBFGS)
        loss, joint = (self._line_search if searches else self._gradient_step)(optimizer, batch, batch_idx)
        self.batches_seen += 1
        self.in_step = False
        step_schedulers(self.trainer, self.batches_seen, skipped=self.step_skipped)
        self.step_loss = loss = loss.detach()
        if self._loss_is_due():
            self.log("train/loss", loss, batch_size=sum(joint[k].numel() for k in range(3)))
        return loss

    def _gradient_step(
        self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int
    ) -> tuple[Tensor, JointScores]:
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        buffers = [b.clone() for b in self.buffers()] if scaler is not None else []
        self.forget_gradients(optimizer, batch_idx)
        previous = self.previous.scores(self, batch)
        joint = self.joint_scores(batch)
        undo = (joint.index, self.algorithm.snapshot(joint.index)) if scaler is not None else None
        with self.full_precision():
            loss = self.algorithm(*joint, previous=previous)
        self.manual_backward(loss)
        self.previous.remember()
        self.step_skipped = self.take_step(optimizer, batch_idx, loss, scaler)
        if undo is not None and self.step_skipped:
            self.algorithm.rollback(*undo)
            self.previous.discard()
            # running statistics among them, which activations that overflowed would spoil for good
            assign(self.buffers(), buffers)
        else:
            self._after_step(joint)
        return loss, joint

    def _line_search(
        self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int
    ) -> tuple[Tensor, JointScores]:
        """A step of L-BFGS, which evaluates one function several times."""
        if self.algorithm.sampling != "full":
            msg = (
                f"LBFGS evaluates the loss several times a step, but {type(self.algorithm).__name__} changes its state "
                "or its samples with each of them. Use `FullBatch`, or another optimizer."
            )
            raise UnsupportedError(msg)
        seen: list[JointScores] = []
        losses: list[Tensor] = []

        def evaluate() -> Tensor:
            self.forget_gradients(optimizer, batch_idx)
            seen[:] = [self.joint_scores(batch)]
            with self.full_precision():
                loss = self.algorithm(*seen[0])
            self.manual_backward(loss)
            losses.append(loss.detach())
            return loss

        self.optimizer_step(self.current_epoch, batch_idx, optimizer, evaluate)
        return losses[0], seen[0]  # that of the step's start, as torch's `step` returns it

    def _loss_is_due(self) -> bool:
        # Lightning takes as long to log a value as a small model to train a step, and hands on every n-th only. The
        # first one tells callbacks that the metric exists, the last one is what they find at the epoch's end.
        first, self._loss_was_logged = not self._loss_was_logged, True
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # Trainer sets it at run time
        return first or self.trainer.is_last_batch or bool(every and self.trainer.global_step % every == 0)

    def joint_scores(self, batch: PosNegBatch) -> JointScores:
        """One forward pass over the joint batch, then the scores of all ranks."""
        scores = self.algorithm_scores(batch.inputs)
        sizes = batch.num_pos, batch.num_neg, batch.num_dual_neg
        return gather_scores(scores, as_index(batch.index, scores.device), sizes, batch.shares)

    def _after_step(self, joint: JointScores) -> None:
        if self.memory is not None:
            self.memory.update(joint.pos_scores, joint.neg_scores, joint.index)
        if self.iterates is not None and self.iterates.averaged:
            self.iterates.update()
        self.previous.commit()

    @duty("before")
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish the gradient estimate, clip it, then add the proximal term; all on unscaled gradients."""
        self.expect_final_gradients(optimizer)
        coefficient = self.algorithm.proximal_coefficient
        clips_itself = type(self).configure_gradient_clipping is not LightningModule.configure_gradient_clipping
        clips = clips_itself or self.gradient_clip_val is not None
        if not clips and coefficient == 0 and not self.previous.recursive:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)  # Lightning leaves this to fused optimizers, which then see scaled gradients
        make_dense(optimizer)
        self.previous.estimate(self.algorithm)
        if clips_itself:
            self.configure_gradient_clipping(optimizer, self.gradient_clip_val, "norm")
        elif self.gradient_clip_val is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.gradient_clip_val)
        if coefficient != 0 and self.iterates is not None:
            self.iterates.add_proximal_gradient(coefficient)

    @duty("after")
    def on_validation_end(self) -> None:
        """Put the last iterate back, after the hooks of all callbacks: they find the weights that were validated."""
        leave_average(self)

    # ---------------------------------------------------------------- configuration

    @duty("result")
    def configure_callbacks(self, given: Any = ()) -> list[Callback]:
        """Add the callbacks that training relies on to what other classes ``given``, unless the Trainer has its own."""
        if self._restored is not None:  # by an earlier run that failed before its training started; this one begins
            self._restored = None
            self._forget_training()
        compile_model_alone(self)
        given = list(given or ()) if not isinstance(given, Callback) else [given]
        refuse_unsupported(self.trainer, given)
        for owner in (self, *self.trainer.callbacks, *given):  # type: ignore[attr-defined]
            refuse_replaced(owner)
        say_unused(self)
        use_atomic_files(self.trainer)
        present = [type(callback) for callback in (*self.trainer.callbacks, *given)]  # type: ignore[attr-defined]
        needed: Iterable[type[Callback]] = (FiniteGuard, StageCallback)
        return [*given, *(kind() for kind in needed if not any(issubclass(p, kind) for p in present))]

    @duty("before")
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Publish the evaluation weights as ``state_dict``; keep all that training remembers beside them."""
        checkpointing.save(self, checkpoint)

    @_restricted_classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Make a module from a checkpoint as Lightning does, after a look at the file's check sums.

        Raises:
            CheckpointError: if the file is not whole, or its weights do not fit.
        """
        if isinstance(checkpoint_path, (str, Path)):
            check_file(checkpoint_path)
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights as torch does; what does not fit is one line of a :class:`CheckpointError`."""
        load = super().load_state_dict
        return load_state(self, lambda: load(state_dict, strict=strict, assign=assign), state_dict)

    @duty("before")
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is ours and fits; the state of a run to resume is restored when training starts."""
        checkpointing.prepare_loading(self, checkpoint)
        self._is_trained = self._is_trained or self._restored is None


def _check_arguments(gradient_clip_val: Any, num_positives: Any) -> None:
    if gradient_clip_val is not None and not (is_real(gradient_clip_val) and gradient_clip_val > 0):
        msg = f"Expected `gradient_clip_val` to be a number above 0, or None, but got {gradient_clip_val!r}."
        raise ArgumentError(msg)
    if num_positives is not None:
        check_count(num_positives, "num_positives", 1)
