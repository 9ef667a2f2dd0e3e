"""The LightningModule: one forward pass, one gather, one algorithm step, one optimizer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.algorithms.base import PreviousScores
from lightning_tpauc.algorithms.pauci import RecursiveAlgorithm
from lightning_tpauc.data.batch import PosNegBatch, check_training_batch, gather_batch
from lightning_tpauc.distributed import GatheredScores, assign
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import check_count, is_real
from lightning_tpauc.lightning_fixes.checkpoint_files import (
    check_file,
    explained_reading,
    load_state,
    load_weights,
    use_atomic_files,
)
from lightning_tpauc.lightning_fixes.compiled import compile_model_alone
from lightning_tpauc.lightning_fixes.subclassing import duty, refuse_replaced, refuse_taken, say_twin, say_unused
from lightning_tpauc.lightning_fixes.unsupported import refuse_unsupported
from lightning_tpauc.metrics.reporting import FurtherMetrics
from lightning_tpauc.optimization.optimized_module import make_dense
from lightning_tpauc.training.checkpoint import give_back, prepare_loading, save_cli_hyperparameters, take_back
from lightning_tpauc.training.checkpoint import save as save_checkpoint
from lightning_tpauc.training.needed_callbacks import in_order, needed_callbacks
from lightning_tpauc.training.schedules import step_schedulers
from lightning_tpauc.training.state import Phase
from lightning_tpauc.training.trained_module import TrainedModule

_NOT_PREPARED = (
    "The callbacks of {0} did not prepare this training: something else stands in place of `{0}.configure_callbacks` "
    "or of `StageCallback.on_train_start`. Override such hooks in a subclass, where ours run as well."
)


class TPAUCModule(TrainedModule):
    r"""Trains a model that gives one score per example, or one for each of K labels, to maximise two-way partial AUC.

    Three ways to use it: pass a ``backbone``; subclass it and define ``forward(inputs) -> scores``; or mix it into an
    existing LightningModule, ``class Mine(TPAUCModule, TheirModule)``, whose ``forward`` it then trains. Batches are
    :class:`~lightning_tpauc.PosNegBatch`, as :class:`~lightning_tpauc.PosNegDataModule` makes them. The loss of a step
    is logged as ``train/loss`` every ``Trainer(log_every_n_steps)`` steps and at an epoch's end.
    ``Trainer.fit(torch.compile(module))`` compiles its ``forward``, and trains to the same result.

    Six hooks of a class that is mixed in are replaced: ``training_step``, ``validation_step``, ``test_step``,
    ``predict_step``, ``on_validation_epoch_end`` and ``on_test_epoch_end``. Its ``configure_optimizers`` is used if no
    ``optimizer`` is given, and all its other hooks are called. A hook that a subclass overrides runs beside ours.
    Freeze layers with ``requires_grad_(False)``. Give layers their own learning rates with parameter groups in
    ``configure_optimizers``. Add another loss with :meth:`auxiliary_loss`. Weight single examples with
    ``sample_weight`` of the data module: it changes how often an example is drawn, not its loss.

    Args:
        backbone: maps ``inputs`` to scores of shape ``(N,)`` or ``(N, 1)``, larger meaning more positive, or to the
            logits of two classes, ``(N, 2)``, whose difference is the score; alone or as ``logits`` of the output. For
            data with K labels, to K scores, ``(N, K)``.
            Inputs that are mappings or PyG graphs are passed by keyword where its ``forward`` names their entries.
        algorithm: the training method. ``None`` is STACO1 at ``min_tpr = max_fpr = 0.5``, and evaluates a checkpoint at
            the rectangle that the checkpoint was trained for.
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. If ``None``, the mixed-in module's
            ``configure_optimizers`` is used, and without one :class:`DampedAdam` with learning rate 0.01 (PAUCI:
            0.002).
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
        metrics: torchmetrics, or your own, to report in validation and test beside ours: one, a list, or a dictionary
            of names, as in ``metrics={"f1": BinaryF1Score()}`` for ``val/f1``. They get the sigmoid of the raw scores.
        num_positives: number of training positives, of each of several labels in a list; the data module's if ``None``.
        tasks: for data with several labels, the rectangle and the weight of some of them by name or position, as in
            ``{"liver": {"max_fpr": 0.1, "weight": 2.0}}``. The others have the algorithm's rectangle and weight 1.
        init_from: file with the weights that a new run starts from (fine-tuning): a checkpoint of another run, whatever
            its data, or the ``state_dict`` of such a module or of a ``backbone``.
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
        metrics: FurtherMetrics | None = None,
        num_positives: int | list[int] | None = None,
        init_from: str | None = None,
        tasks: dict[str, dict[str, float]] | dict[int, dict[str, float]] | None = None,
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
            metrics=metrics,
            tasks=tasks,
            **kwargs,
        )
        _check_arguments(gradient_clip_val, num_positives)
        say_twin()
        refuse_taken(self, "gradient_clip_val", "num_positives", "init_from")
        self.gradient_clip_val, self.num_positives, self.init_from = gradient_clip_val, num_positives, init_from
        self.register_state_dict_post_hook(give_back)  # type: ignore[no-untyped-call]  # torch leaves both untyped
        self.register_load_state_dict_pre_hook(take_back)  # type: ignore[no-untyped-call]
        save_cli_hyperparameters(self)

    # ---------------------------------------------------------------- training

    @duty("before")
    def on_fit_start(self) -> None:
        """Load the weights of ``init_from`` in the module's first run, unless that is resumed."""
        self.area_warnings.forget()
        state = self.training_state
        first, is_new = state.begin_run(), state.phase is not Phase.LOADED
        if self.init_from is not None and is_new and first:
            load_weights(self, self.init_from)
            state.note_weights_from_file()
        if is_new:
            self.operating_point = None
            self.trained_start.prepare(self.trainer, is_trained=state.is_trained or state.average is not None)

    @duty("required", cooperative=False)
    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Take one step of the algorithm and of the optimizer.

        A subclass that overrides it calls it once per batch, and may return something else. Only the gradient scaler of
        ``precision="16-mixed"`` waits for the device, once per step.
        """
        check_training_batch(batch)
        state = self.training_state
        if state.average is None:
            raise UnsupportedError(_NOT_PREPARED.format(type(self).__name__))
        optimizer = self.single_optimizer()
        state.begin_step()
        self.algorithm.step_scale = self.step_scale(optimizer)
        searches = isinstance(optimizer.optimizer, torch.optim.LBFGS)
        joint = (self._line_search if searches else self._gradient_step)(optimizer, batch, batch_idx)
        step_schedulers(self.trainer, state.batches_seen, skipped=state.step_skipped)
        loss = state.step_loss
        if self._loss_is_due():
            size = joint.pos_scores.shape[-1] + joint.neg_scores.shape[-1] + joint.dual_neg_scores.shape[-1]
            self.log("train/loss", loss, batch_size=size)
        return loss

    def _gradient_step(self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int) -> GatheredScores:
        state = self.training_state
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        buffers = [b.clone() for b in self.buffers()] if scaler is not None else []
        self.forget_gradients(optimizer, batch_idx)
        previous = self._previous_scores(batch)
        joint = self.joint_scores(batch)
        undo = self._undo(joint) if scaler is not None else None
        with self.full_precision():
            loss = self._with_auxiliary(self.algorithm(*joint[:4], previous=previous, masks=joint.masks), batch, joint)
        self.manual_backward(loss)
        state.previous.remember()
        skipped = self.take_step(optimizer, batch_idx, loss, scaler)
        if undo is not None and skipped:
            self.algorithm.rollback(*undo)
            # running statistics are buffers, and activations that overflowed have spoilt them
            assign(self.buffers(), buffers)
            state.skip_step(loss)
        else:
            state.commit_step(loss, joint)
        return joint

    def _undo(self, joint: GatheredScores) -> tuple[Tensor, dict[str, Tensor]]:
        """What :meth:`~lightning_tpauc.algorithms.Algorithm.rollback` takes to undo the step that comes next."""
        place = joint.index if joint.masks is None else self.algorithm.place(joint.index, joint.masks.pos)
        return place, self.algorithm.snapshot(place)

    def auxiliary_loss(self, batch: PosNegBatch, scores: GatheredScores) -> Tensor | None:
        """Override this to add a loss, times its weight, to the algorithm's; ``None``, the default, adds nothing.

        ``train/loss`` is the sum. The algorithm's own part is about 1 for a constant model unless its steps are
        absolute. Over several processes the sum's gradient is the mean of theirs.

        Args:
            batch: the batch of this process.
            scores: ``pos_scores``, ``neg_scores`` and ``dual_neg_scores`` of all processes, as the algorithm sees them,
                with gradients.

        Returns:
            Tensor of shape ``()``.
        """
        mixed_in = getattr(super(), "auxiliary_loss", None)
        return cast("Tensor | None", mixed_in(batch, scores)) if mixed_in is not None else None

    def _with_auxiliary(self, loss: Tensor, batch: PosNegBatch, scores: GatheredScores) -> Tensor:
        further: Any = self.auxiliary_loss(batch, scores)
        if further is None:
            return loss
        if isinstance(self.algorithm, RecursiveAlgorithm):
            msg = (
                f"{type(self.algorithm).__name__} corrects its gradient by that of the previous step, which an "
                "`auxiliary_loss` does not have: the sum would be another loss's. Use STACO, or leave it out."
            )
            raise UnsupportedError(msg)
        if not isinstance(further, Tensor) or further.numel() != 1:
            got = f"shape {tuple(further.shape)}" if isinstance(further, Tensor) else repr(further)
            msg = f"Expected `{type(self).__name__}.auxiliary_loss` to return one number as a tensor, but got {got}."
            raise ArgumentError(msg)
        total: Tensor = loss + further.reshape(())
        return total

    def _previous_scores(self, batch: PosNegBatch) -> PreviousScores | None:
        """Scores of ``batch`` under the weights before the last update, for algorithms that need them.

        ``None`` before the first step. For a recursive method this also leaves the gradients of
        :meth:`RecursiveAlgorithm.previous_loss` in the parameters, to which the step's own are then added.
        """
        previous, algorithm = self.training_state.previous, self.algorithm
        if not previous.weights:
            return None
        with previous.swapped_in(self):
            joint = self.joint_scores(batch)
            if isinstance(algorithm, RecursiveAlgorithm):
                with self.full_precision():
                    loss = algorithm.previous_loss(joint.pos_scores, joint.neg_scores)
                self.manual_backward(loss)
        return PreviousScores(joint.pos_scores.detach(), joint.neg_scores.detach())

    def _line_search(self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int) -> GatheredScores:
        """A step of L-BFGS, which evaluates one function several times."""
        if self.algorithm.sampling != "full":
            msg = (
                f"LBFGS evaluates the loss several times a step, but {type(self.algorithm).__name__} changes its state "
                "or its samples with each of them. Use `FullBatch`, or another optimizer."
            )
            raise UnsupportedError(msg)
        seen: list[GatheredScores] = []
        losses: list[Tensor] = []

        def evaluate() -> Tensor:
            self.forget_gradients(optimizer, batch_idx)
            seen[:] = [self.joint_scores(batch)]
            with self.full_precision():
                loss = self._with_auxiliary(self.algorithm(*seen[0][:4], masks=seen[0].masks), batch, seen[0])
            self.manual_backward(loss)
            losses.append(loss.detach())
            return loss

        self.optimizer_step(self.current_epoch, batch_idx, optimizer, evaluate)
        self.training_state.commit_step(losses[0], None)  # the loss at the step's start, as torch's `step` returns it
        return seen[0]

    def _loss_is_due(self) -> bool:
        # Logging a value takes Lightning as long as a step of a small model, and loggers get only every n-th value. The
        # first value tells callbacks that the metric exists, and the last one is what they find at the epoch's end.
        first = not self.training_state.loss_was_logged
        self.training_state.note_logged_loss()
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # Trainer sets it at run time
        return first or self.trainer.is_last_batch or bool(every and self.trainer.global_step % every == 0)

    def joint_scores(self, batch: PosNegBatch) -> GatheredScores:
        """One forward pass over the joint batch, then the scores of all ranks."""
        return gather_batch(self.algorithm_scores(batch.inputs), batch)

    @duty("before")
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish the gradient estimate, clip it, then add the proximal term, all on unscaled gradients."""
        self.expect_final_gradients(optimizer)
        state, coefficient = self.training_state, self.algorithm.proximal_coefficient
        clips_itself = type(self).configure_gradient_clipping is not LightningModule.configure_gradient_clipping
        clips = clips_itself or self.gradient_clip_val is not None
        if not clips and coefficient == 0 and not state.previous.recursive:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves this to fused optimizers, so that hooks would see scaled gradients
            scaler.unscale_(optimizer)
        make_dense(optimizer)
        state.previous.estimate(self.algorithm)
        if clips_itself:
            self.configure_gradient_clipping(optimizer, self.gradient_clip_val, "norm")
        elif self.gradient_clip_val is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.gradient_clip_val)
        if coefficient != 0 and state.average is not None:
            state.average.add_proximal_gradient(coefficient)

    @duty("after")
    def on_validation_end(self) -> None:
        """Put the last iterate back after the hooks of all callbacks, which thus still find the validated weights."""
        self.training_state.restore_last_iterate()

    # ---------------------------------------------------------------- configuration

    @duty("result")
    def configure_callbacks(self, given: Any = ()) -> list[Callback]:
        """Add the callbacks that training needs to those of other classes, unless the Trainer has them already."""
        self.training_state.drop_unused_checkpoint()
        compile_model_alone(self)
        given = list(given or ()) if not isinstance(given, Callback) else [given]
        refuse_unsupported(self.trainer, given)
        for owner in (self, *self.trainer.callbacks, *given):  # type: ignore[attr-defined]
            refuse_replaced(owner)
        say_unused(self)
        use_atomic_files(self.trainer)
        present = [type(callback) for callback in (*self.trainer.callbacks, *given)]  # type: ignore[attr-defined]
        return [*given, *needed_callbacks(present)]

    @duty("before")
    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Let the callbacks that training needs be called before those that may save."""
        self.trainer.callbacks = in_order(self.trainer.callbacks)  # type: ignore[attr-defined]

    @duty("before")
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the evaluation weights as ``state_dict``, and beside them all that training remembers."""
        save_checkpoint(self, checkpoint)

    @_restricted_classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Verify the file's check sums, then make a module from the checkpoint as Lightning does.

        Raises:
            CheckpointError: if the file is damaged or no checkpoint, or its weights do not fit.
        """
        if isinstance(checkpoint_path, (str, Path)):
            check_file(checkpoint_path)
        with explained_reading(checkpoint_path, kwargs.get("weights_only")):
            return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights as torch does; a :class:`CheckpointError` says in one line what does not fit."""
        load = super().load_state_dict
        return load_state(self, lambda: load(state_dict, strict=strict, assign=assign), state_dict)

    @duty("before")
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint fits; the state of a run to resume is restored when training starts."""
        prepare_loading(self, checkpoint)


def _check_arguments(gradient_clip_val: Any, num_positives: Any) -> None:
    if gradient_clip_val is not None and not (is_real(gradient_clip_val) and gradient_clip_val > 0):
        msg = f"Expected `gradient_clip_val` to be a number above 0, or None, but got {gradient_clip_val!r}."
        raise ArgumentError(msg)
    for count in num_positives if isinstance(num_positives, (list, tuple)) else [num_positives]:
        if count is not None:
            check_count(count, "num_positives", 1)
