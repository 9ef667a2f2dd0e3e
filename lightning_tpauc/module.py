"""The LightningModule: one forward pass, one gather, one algorithm step, one optimizer step."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn
from torch.random import fork_rng

from lightning_tpauc.algorithms import STACO, Algorithm
from lightning_tpauc.algorithms.base import PreviousScores
from lightning_tpauc.algorithms.pauci import RecursiveAlgorithm
from lightning_tpauc.data.batch import EvalBatch, PosNegBatch, check_training_batch
from lightning_tpauc.distributed import GatheredScores, assign, gather_scores
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import as_index, check_choice, check_count, require_range
from lightning_tpauc.functional.pairwise import common_dtype, full_precision
from lightning_tpauc.lightning_fixes import checkpoint_files, unsupported
from lightning_tpauc.metrics.reporting import FurtherMetrics, Report
from lightning_tpauc.scoring.forward import ScoringModel, call_model, in_known_order, scores_of, shaped_scores
from lightning_tpauc.scoring.labels import check_label_settings, inputs_to_predict, known_layout
from lightning_tpauc.training import checkpoint as saved_training
from lightning_tpauc.training.guards import warn_of_activation
from lightning_tpauc.training.optimizer import QuadraticWarmup, keep_monitors, make_optimizer, step_schedulers
from lightning_tpauc.training.stages import needed_callbacks
from lightning_tpauc.training.state import Phase, TrainingState


class TPAUCModule(ScoringModel):
    r"""Trains a model that gives one score per example, or one for each of K labels, to maximise two-way partial AUC.

    Three ways to use it: pass a ``backbone``; subclass it and define ``forward(inputs) -> scores``; or mix it into an
    existing LightningModule, ``class Mine(TPAUCModule, TheirModule)``, whose ``forward`` it then trains. Batches are
    :class:`~lightning_tpauc.PosNegBatch`, as :class:`~lightning_tpauc.PosNegDataModule` makes them. The loss of a step
    is logged as ``train/loss`` every ``Trainer(log_every_n_steps)`` steps and at an epoch's end.
    ``Trainer.fit(torch.compile(module))`` compiles its ``forward``, and trains to the same result.

    Six hooks of a class that is mixed in are replaced: ``training_step``, ``validation_step``, ``test_step``,
    ``predict_step``, ``on_validation_epoch_end`` and ``on_test_epoch_end``. Its ``configure_optimizers`` is used if no
    ``optimizer`` is given, and all its other hooks are called. A subclass may override any hook. Those of training,
    callbacks and checkpoints call ``super()``: ``training_step``, ``configure_callbacks``, ``on_save_checkpoint``,
    ``on_load_checkpoint``. A callback validates and tests, whatever those hooks do. Freeze layers with
    ``requires_grad_(False)``. Give layers their own learning rates with parameter groups in ``configure_optimizers``.
    Add another loss with :meth:`auxiliary_loss`. Weight single examples with ``sample_weight`` of the data module: it
    changes how often an example is drawn, not its loss.

    Args:
        backbone: maps ``inputs`` to scores of shape ``(N,)`` or ``(N, 1)``, larger meaning more positive, or to the
            logits of two classes, ``(N, 2)``, whose difference is the score; alone or as ``logits`` of the output. For
            data with K labels, to K scores, ``(N, K)``.
            Inputs that are mappings or PyG graphs are passed by keyword where its ``forward`` names their entries.
        algorithm: the training method. ``None`` is STACO1 at ``min_tpr = max_fpr = 0.5``, and evaluates a checkpoint at
            the rectangle that the checkpoint was trained for.
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. If ``None``, the mixed-in module's
            ``configure_optimizers`` is used, and without one :class:`DampedAdam` with learning rate 0.01 (PAUCI:
            0.002) and weight decay 0.1.
        lr_scheduler: maps the optimizer to a scheduler. It drives the learning rate and, by the same factor, the
            algorithm's own step sizes. A ``ReduceLROnPlateau`` follows ``val/tpauc``, or what its ``monitor`` names.
            Without one both grow over the first steps (``warmup``) and then stay.
        lr_scheduler_interval: whether the scheduler steps after every ``"step"`` or every ``"epoch"``.
        warmup: share of the run, or of its ``max_time``, in which the learning rate grows to that of the optimizer, as
            the square of the steps; at most 20 epochs, and only where neither ``lr_scheduler`` nor a class mixed in
            makes a schedule. ``None``: 0.1, and for STACO up to 0.3, in runs of 500 steps and more.
        score_activation: ``"sigmoid"`` feeds probabilities to the algorithm, as the paper does for deep models;
            ``"identity"`` feeds raw scores. Metrics rank the raw scores either way.
        gradient_clip_val: bound on the norm of the loss gradient. What methods with stages add to it, a pull to the
            weights at the stage's start, is not clipped. ``None`` does not clip.
        chunk_size: cuts a batch into chunks of at most so many examples. A large batch then needs the memory of a small
            one, and a second forward pass. The gradient is that of the whole batch, with any algorithm, but batch norm
            takes its statistics from each chunk. ``None`` does not cut.
        rectangles: further (min_tpr, max_fpr) pairs to report; the algorithm's is always reported as ``tpauc``.
        log_objective: also report the exact training objective F, on the evaluated data.
        metrics: torchmetrics, or your own, to report in validation and test beside ours: one, a list, or a dictionary
            of names, as in ``metrics={"f1": BinaryF1Score()}`` for ``val/f1``. Metrics of decisions, such as F1, judge
            those of the module's threshold; others get the sigmoid of the raw scores.
        num_positives: number of training positives; a list of numbers for several labels. ``None`` asks the data
            module.
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

    backbone: Any
    chunk_size: int | None
    optimizer_factory: Any
    scheduler_factory: Any
    lr_scheduler_interval: Literal["epoch", "step"]
    training_state: TrainingState
    _inherits_forward: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        unsupported.check_order(cls, TPAUCModule)
        if (theirs := cls.configure_optimizers) is not TPAUCModule.configure_optimizers:  # an override is seen as well
            cls.configure_optimizers = wraps(theirs)(lambda self: keep_monitors(theirs(self)))  # type: ignore[method-assign]

    def __init__(
        self,
        backbone: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        warmup: float | None = None,
        score_activation: Literal["identity", "sigmoid"] = "identity",
        gradient_clip_val: float | None = None,
        chunk_size: int | None = None,
        rectangles: Sequence[tuple[float, float]] = (),
        log_objective: bool = False,
        metrics: FurtherMetrics | None = None,
        num_positives: int | list[int] | None = None,
        init_from: str | None = None,
        tasks: dict[str, dict[str, float]] | dict[int, dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            super().__init__(**kwargs)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise ArgumentError(
                f"{type(self).__name__} can't take all of these arguments: {', '.join(kwargs)}. The rectangle is the "
                "algorithm's, as in STACO(min_tpr=0.8, max_fpr=0.2), and the learning rate the optimizer's, as in "
                "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.003)."
            ) from error
        check_choice(score_activation, "score_activation", ("identity", "sigmoid"))
        check_choice(lr_scheduler_interval, "lr_scheduler_interval", ("epoch", "step"))
        for name, value, kind in (("algorithm", algorithm, Algorithm), ("backbone", backbone, nn.Module)):
            if value is not None and not isinstance(value, kind):
                raise ArgumentError(
                    f"Expected `{name}` to be a {kind.__name__}, as in TPAUCModule(net, STACO()), but got {value!r}."
                )
        if gradient_clip_val is not None:
            require_range("gradient_clip_val", gradient_clip_val, 0.0, open_low=True)
        if chunk_size is not None:
            check_count(chunk_size, "chunk_size", 1)
        for count in num_positives if isinstance(num_positives, (list, tuple)) else (num_positives,):
            if count is not None:
                check_count(count, "num_positives", 1)
        own = STACO() if algorithm is None else copy.deepcopy(algorithm)  # which keeps the state of one model
        activation = "identity" if own.takes_logits else score_activation
        own.score_slope = 0.25 if activation == "sigmoid" else 1.0  # of the score where the model's output is 0
        ours = {
            "algorithm": own,
            "algorithm_is_default": algorithm is None,
            "chunk_size": chunk_size,
            "gradient_clip_val": gradient_clip_val,
            "init_from": init_from,
            "label_settings": check_label_settings(tasks),
            "lr_scheduler_interval": lr_scheduler_interval,
            "num_positives": num_positives,
            "optimizer_factory": optimizer,
            "scheduler_factory": lr_scheduler,
            "score_activation": score_activation,
            "training_state": TrainingState(),
            "warmup": None if warmup is None else require_range("warmup", warmup, 0.0, 1.0),
            "_inherits_forward": backbone is None and _mixed_in(self, "forward") is not None,
            "_reported": Report(rectangles, log_objective, metrics),
            **({"backbone": backbone} if backbone is not None else {}),
        }
        learnt = "base_lr", "input_layout", "knows_labels", "operating_point", "threshold", "trained_labels"
        unsupported.refuse_taken(self, (*ours, *learnt, "_is_squashed"))
        self.automatic_optimization = False
        for attribute, own_value in ours.items():
            setattr(self, attribute, own_value)
        self.register_load_state_dict_pre_hook(_accept)  # type: ignore[no-untyped-call]  # torch leaves them untyped
        self.register_state_dict_post_hook(saved_training.give_back)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(saved_training.take_back)  # type: ignore[no-untyped-call]
        saved_training.save_cli_hyperparameters(self)

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module looks for parameters, modules and buffers in whatever is assigned, and Lightning assigns the name of
        # the hook that it enters or leaves some thirty times a step.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---------------------------------------------------------------- scores

    def forward(self, inputs: Any) -> Tensor:
        """The output of the backbone, or of the class mixed in, for ``inputs``; see :func:`call_model`.

        Raises:
            ArgumentError: if there is no model.
        """
        if not self._inherits_forward:
            _require_model(self)
        return cast(Tensor, call_model(super().forward if self._inherits_forward else self.backbone, inputs))

    def raw_scores(self, inputs: Any) -> Tensor:
        """Scores ``(N,)``, or ``(N, K)`` of K labels, in float32 or better, whatever precision the model computes in.

        Raises:
            ArgumentError: if the model does not return one score per example, or one per example and label.
        """
        inputs = in_known_order(inputs, self.input_layout)
        scores = scores_of(call_model(self, inputs))
        if self._is_squashed is None and scores.requires_grad:
            self._is_squashed = warn_of_activation(scores, self.algorithm, self.score_activation)
        scores, labels = scores.to(common_dtype(scores)), self.trained_labels
        return shaped_scores(scores, None if labels is None else labels.names)

    def algorithm_scores(self, inputs: Any) -> Tensor:
        """Scores for the algorithm: :meth:`raw_scores`, to which ``score_activation`` is applied."""
        scores = self.raw_scores(inputs)
        return scores.sigmoid() if self.score_activation == "sigmoid" and not self.algorithm.takes_logits else scores

    def joint_scores(self, batch: PosNegBatch) -> GatheredScores:
        """One forward pass over the joint batch, then the scores of all ranks."""
        return self._gathered(batch, self._scores_with_graph(batch.inputs))

    def _scores_with_graph(self, inputs: Any) -> Tensor:
        scores: Tensor = self.algorithm_scores(inputs)
        if torch.is_grad_enabled() and not scores.requires_grad:
            raise ArgumentError(
                "The scores of `forward` have no gradient: leave out `.detach()` and `torch.no_grad()`."
            )
        return scores

    def _gathered(self, batch: PosNegBatch, scores: Tensor) -> GatheredScores:
        return gather_scores(batch.split(scores), as_index(batch.index, scores.device), batch.masks, batch.shares)

    @property
    def threshold(self) -> float | dict[str, float | None] | None:
        """An example is called positive if its raw score is at least this threshold; ``None`` before one is chosen.

        A model of several labels has a dictionary with the threshold of each label by its name.

        It comes from :class:`~lightning_tpauc.DecisionThreshold`, and with checkpoints. ``operating_point`` says more.
        """
        return None if self.operating_point is None else self.operating_point.threshold

    # ---------------------------------------------------------------- training

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Take one step of the algorithm and of the optimizer.

        A subclass that overrides it calls ``super()`` once per batch, and may return something else. Only the gradient
        scaler of ``precision="16-mixed"`` waits for the device, once per step.
        """
        check_training_batch(batch)
        state = self.training_state
        if state.average is None:
            raise UnsupportedError("Callbacks are lost: let `configure_callbacks` return those of `super()`, too.")
        optimizer = cast(LightningOptimizer, self.optimizers())  # which counts the steps
        state.phase = Phase.IN_STEP
        self.algorithm.step_scale = self._step_scale(optimizer)
        searches = isinstance(optimizer.optimizer, torch.optim.LBFGS)
        joint = (self._line_search if searches else self._gradient_step)(optimizer, batch, batch_idx)
        step_schedulers(self.trainer, state.batches_seen, skipped=state.step_skipped)
        # Logging a value takes Lightning as long as a step of a small model, and loggers get only every n-th value. The
        # first value tells callbacks that the metric exists, and the last one is what they find at the epoch's end.
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # Trainer sets it at run time
        due = every and self.trainer.global_step % every == 0
        if due or not state.loss_was_logged or self.trainer.is_last_batch:
            state.loss_was_logged = True
            size = joint.pos_scores.shape[-1] + joint.neg_scores.shape[-1] + joint.dual_neg_scores.shape[-1]
            self.log("train/loss", state.step_loss, batch_size=size)
        return state.step_loss

    def _gradient_step(self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int) -> GatheredScores:
        state, algorithm = self.training_state, self.algorithm
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        buffers = [b.clone() for b in self.buffers()] if scaler is not None else []
        self._forget_gradients(optimizer, batch_idx)
        previous = self._previous_scores(batch)
        undo: Any = nullcontext

        def loss_of(joint: GatheredScores) -> Tensor:
            nonlocal undo
            if scaler is not None:
                place = joint.index if joint.masks is None else algorithm.place(joint.index, joint.masks.pos)
                undo = partial(algorithm.rollback, place, algorithm.snapshot(place))
            return self._loss(batch, joint, previous)

        joint, loss = self._backward(batch, loss_of)
        state.previous.remember()
        if self._take_step(optimizer, batch_idx, loss, scaler):
            state.commit_step(loss, joint)
        else:
            undo()
            # running statistics are buffers, and activations that overflowed have spoilt them
            assign(self.buffers(), buffers)
            state.skip_step(loss)
        return joint

    def _line_search(self, optimizer: LightningOptimizer, batch: PosNegBatch, batch_idx: int) -> GatheredScores:
        """A step of L-BFGS, which evaluates one function several times."""
        if self.algorithm.sampling != "full":
            raise UnsupportedError(
                f"LBFGS needs one loss for all steps: {type(self.algorithm).__name__} draws batches, `FullBatch` none."
            )
        evaluated: list[tuple[Tensor, GatheredScores]] = []

        def evaluate() -> Tensor:
            self._forget_gradients(optimizer, batch_idx)
            joint, loss = self._backward(batch, partial(self._loss, batch))
            evaluated.append((loss.detach(), joint))
            return loss

        self.optimizer_step(self.current_epoch, batch_idx, optimizer, evaluate)
        loss, joint = evaluated[0]  # at the step's start, as torch's `step` returns it
        self.training_state.commit_step(loss, None)
        return joint

    def _scores_in_chunks(self, chunks: list[Any]) -> Tensor:
        """Scores of this rank's batch, in its order, without a graph."""
        parts = [self.algorithm_scores(inputs) for inputs in chunks]
        scores = torch.cat([torch.empty_like(part) for part in parts])
        for k, part in enumerate(parts):
            scores[k :: len(parts)] = part
        return scores

    def _backward(
        self, batch: PosNegBatch, loss_of: Callable[[GatheredScores], Tensor]
    ) -> tuple[GatheredScores, Tensor]:
        """Scores of all ranks, and the loss made of them, whose gradient is left in the parameters.

        In chunks (Gao, Zhang, Han, Callan: *Scaling deep contrastive learning batch size under memory limited setup*,
        2021) all scores are computed first, without a graph. They give the loss and its gradient by each score. Then
        every chunk has its forward pass again, with the same random numbers and buffers, and its backward pass.
        """
        chunks = batch.chunks(self.chunk_size)
        if len(chunks) == 1:
            joint = self.joint_scores(batch)
            loss = loss_of(joint)
            self.manual_backward(loss)
            return joint, loss
        buffers = [b.clone() for b in self.buffers()]
        with torch.no_grad(), fork_rng([self.device] if self.device.type == "cuda" else []):
            scores = self._scores_in_chunks(chunks)
        assign(self.buffers(), buffers)
        torch.clear_autocast_cache()  # of weights that were cast without a graph
        joint = self._gathered(batch, scores.requires_grad_())
        loss = loss_of(joint)
        (gradient,) = torch.autograd.grad(loss, scores)
        # processes add their gradients up once, with the last chunk
        block: Any = getattr(self.trainer.strategy, "block_backward_sync", nullcontext)
        for k, inputs in enumerate(chunks):
            with nullcontext() if k == len(chunks) - 1 else block():
                self.manual_backward((self._scores_with_graph(inputs) * gradient[k :: len(chunks)]).sum())
        return joint, loss.detach()

    def _loss(self, batch: PosNegBatch, joint: GatheredScores, previous: PreviousScores | None = None) -> Tensor:
        """The algorithm's loss and an auxiliary one, without mixed precision."""
        with full_precision(self.device.type):
            loss = self.algorithm(*joint[:4], previous=previous, masks=joint.masks)
            further: Any = self.auxiliary_loss(batch, joint)
            if further is None:
                return loss
            if self.chunk_size is not None:
                raise UnsupportedError("`auxiliary_loss` needs the whole batch's graph: leave out `chunk_size`.")
            if isinstance(self.algorithm, RecursiveAlgorithm):
                raise UnsupportedError(f"{type(self.algorithm).__name__} can't have an `auxiliary_loss`. Use STACO.")
            return cast(Tensor, loss + further)

    def _previous_scores(self, batch: PosNegBatch) -> PreviousScores | None:
        """Scores of ``batch`` before the last update, if needed; a recursive method's gradients as well."""
        previous, algorithm = self.training_state.previous, self.algorithm
        if not previous.weights:
            return None

        def loss_of(joint: GatheredScores) -> Tensor:
            with full_precision(self.device.type):
                return cast(RecursiveAlgorithm, algorithm).previous_loss(joint.pos_scores, joint.neg_scores)

        with previous.swapped_in(self):
            if isinstance(algorithm, RecursiveAlgorithm):
                joint, _ = self._backward(batch, loss_of)
            else:
                joint = self._gathered(batch, self._scores_in_chunks(batch.chunks(self.chunk_size)))
        return PreviousScores(joint.pos_scores.detach(), joint.neg_scores.detach())

    def auxiliary_loss(self, batch: PosNegBatch, scores: GatheredScores) -> Tensor | None:
        """Override this to add a loss, times its weight, to the algorithm's; ``None``, the default, adds nothing.

        ``train/loss`` is the sum. The algorithm's part is about 1 for a model that gives all the same score, unless it
        has ``step_units="absolute"``. With several processes the gradient is the mean of theirs.

        Args:
            batch: the batch of this process.
            scores: ``pos_scores``, ``neg_scores`` and ``dual_neg_scores`` of all processes, as the algorithm sees them,
                with gradients.

        Returns:
            Tensor of shape ``()``.
        """
        mixed_in = getattr(super(), "auxiliary_loss", None)
        return cast("Tensor | None", mixed_in(batch, scores)) if mixed_in is not None else None

    # ---------------------------------------------------------------- the optimizer

    def configure_optimizers(self) -> Any:
        """The injected optimizer and scheduler, or those of the class mixed in."""
        _require_model(self)
        mixed_in = _mixed_in(self, "configure_optimizers")
        self.base_lr = (0, None)
        if self.optimizer_factory is None and mixed_in is not None:
            if self.scheduler_factory is not None:
                raise ArgumentError("`lr_scheduler` needs an `optimizer`: else `configure_optimizers` makes both.")
            return keep_monitors(mixed_in())
        parameters = [p for p in self.parameters() if p.requires_grad]
        optimizer = make_optimizer(self.optimizer_factory, parameters, self.algorithm.default_lr)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        number = next((k for k, rate in enumerate(rates) if rate > 0), 0)
        scheduler: Any = None
        warmup = self.algorithm.default_warmup if self.warmup is None else self.warmup
        if self.scheduler_factory is not None:
            scheduler = {"scheduler": self.scheduler_factory(optimizer), "interval": self.lr_scheduler_interval}
        elif warmup > 0 and self._trainer is not None:
            scheduler = {"scheduler": QuadraticWarmup(optimizer), "interval": "step"}
        # the rate from before the scheduler, which may have changed it by now; of a cycle, its top
        self.base_lr = (number, optimizer.param_groups[number].get("max_lr", rates[number]))
        return keep_monitors({"optimizer": optimizer, **({} if scheduler is None else {"lr_scheduler": scheduler})})

    def _step_scale(self, optimizer: LightningOptimizer) -> float:
        """The current learning rate divided by the one before any schedule; the algorithm's step sizes follow it."""
        number, base = self.base_lr
        group = optimizer.param_groups[number]
        if base is None:  # another class made the scheduler; OneCycleLR calls a part of the rate "initial"
            base = group.get("max_lr", group.get("initial_lr", group["lr"]))
        return group["lr"] / base if base else 1.0

    def _forget_gradients(self, optimizer: LightningOptimizer, batch_idx: int) -> None:
        """Set the gradients to ``None`` by the hooks that automatic optimization calls."""
        inner = optimizer.optimizer
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # Trainer sets it at run time
            callback.on_before_zero_grad(self.trainer, self, inner)
        self.on_before_zero_grad(inner)
        self.optimizer_zero_grad(self.current_epoch, batch_idx, inner)

    def _take_step(self, optimizer: LightningOptimizer, batch_idx: int, loss: Tensor, scaler: Any) -> bool:
        """Take a step by the hook ``optimizer_step``, which may change the rate; returns whether a scaler let it be."""
        inner, steps, taken, calls = optimizer.optimizer, self.trainer.global_step, [], []
        weight = inner.param_groups[0]["params"][0]
        before = weight._version
        # a fused optimizer leaves a step out on the device, which shows in the scale; others are not called then
        fused = scaler is not None and getattr(inner, "_step_supports_amp_scaling", False)
        scaled = scaler.scale(loss.new_ones(())) if fused else None
        hook = inner.register_step_post_hook(lambda *_: taken.append(True)) if scaler is not None else nullcontext()

        def closure() -> Tensor:  # which Lightning's closure calls before the gradients get their final values
            calls.append(weight._version)
            return loss.detach()

        with hook:
            self.optimizer_step(self.current_epoch, batch_idx, optimizer, closure)
        if self.trainer.global_step - steps != 1 or calls != [before]:
            raise UnsupportedError(
                f"{type(self).optimizer_step.__qualname__} took {self.trainer.global_step - steps} optimizer steps for "
                f"a batch, or {type(inner).__name__} evaluates the loss by itself: every evaluation would be a step of "
                "the algorithm. Call `optimizer.step(closure=optimizer_closure)` once, or use another optimizer."
            )
        if scaled is not None:
            return not bool(scaler.scale(torch.ones_like(scaled)) < scaled)
        return scaler is None or bool(taken)

    # ---------------------------------------------------------------- evaluation, which a callback does

    def validation_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """Empty: a callback scores the batches and logs ``val/tpauc``. Override it to do more besides."""

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """Empty: a callback scores the batches and logs ``test/tpauc``. Override it to do more besides."""

    def on_validation_epoch_end(self) -> None:
        """Empty: it replaces that of a mixed-in class, whose ``validation_step`` does not run. You may override it."""

    def on_test_epoch_end(self) -> None:
        """Empty: it replaces that of a mixed-in class, whose ``test_step`` does not run. You may override it."""

    def predict_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> dict[str, Tensor]:  # noqa: ARG002
        """Return raw scores, the decisions on them and, for batches of a ``PosNegDataModule``, their ``example_id``."""
        if isinstance(batch, EvalBatch):
            real = batch.example_id >= 0
            scores = self.raw_scores(batch.inputs)[real]
            predicted = {"example_id": batch.example_id[real], "score": scores}
        else:
            scores = self.raw_scores(inputs_to_predict(batch, known_layout(self, batch)))
            predicted = {"score": scores}
        return predicted | (self.operating_point.decide(scores) if self.operating_point is not None else {})

    def on_validation_model_zero_grad(self) -> None:
        """Remember the random state from before a validation, whose loader draws from it; call ``super()``."""
        super().on_validation_model_zero_grad()
        self.training_state.random_before_validation = saved_training.own_random_state()

    # ---------------------------------------------------------------- callbacks and checkpoints

    def configure_callbacks(self) -> list[Callback]:
        """Add the callbacks that training and evaluation need, unless the Trainer has them; call ``super()``."""
        given: Any = super().configure_callbacks() or ()
        given = [given] if isinstance(given, Callback) else list(given)
        if self.training_state.phase is Phase.LOADED:  # of a run that failed before its training started
            self.training_state.forget()
        _compile_model_alone(self)
        unsupported.refuse_unsupported(self.trainer, given)
        kind: Any = type(self)
        unsupported.say_replaced(kind, TPAUCModule)
        checkpoint_files.use_atomic_files(self.trainer)
        return [*given, *needed_callbacks([*self.trainer.callbacks, *given])]  # type: ignore[attr-defined]  # as above

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the evaluation weights as ``state_dict``, and beside them all that training remembers."""
        super().on_save_checkpoint(checkpoint)
        if saved_training.STEP not in checkpoint:  # weights alone, for which no callback is asked
            saved_training.save(self, checkpoint)

    @_restricted_classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Verify the file's check sums, then make a module from the checkpoint as Lightning does.

        Raises:
            CheckpointError: if the file is damaged or no checkpoint.
            RuntimeError: from torch, if its weights do not fit.
        """
        with checkpoint_files.explained_reading(checkpoint_path, kwargs.get("weights_only")):
            return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights as torch does.

        The module's threshold is dropped, since it belongs to the former weights. That of a checkpoint stays.
        """
        if not self.__dict__.pop("_awaits_weights", False):
            self.operating_point = None
        trainer = self._trainer
        if trainer is not None and isinstance(trainer.precision_plugin, DoublePrecision):
            trainer.precision_plugin.convert_module(self)  # Lightning does so afterwards: weights would be rounded
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint fits; the state of a run to resume is restored when training starts."""
        super().on_load_checkpoint(checkpoint)
        saved_training.prepare_loading(self, checkpoint)
        self._awaits_weights = True  # which Lightning loads next


# -------------------------------------------------------------------- checks


def _mixed_in(module: TPAUCModule, name: str) -> Any:
    """The bound method of a class that is mixed in; ``None`` if there is only Lightning's own."""
    method = getattr(super(TPAUCModule, module), name)
    return None if getattr(method, "__func__", None) is getattr(LightningModule, name) else method


def _has_model(module: TPAUCModule) -> bool:
    defines_forward = type(module).forward is not TPAUCModule.forward
    return defines_forward or hasattr(module, "backbone") or _mixed_in(module, "forward") is not None


def _require_model(module: TPAUCModule) -> None:
    if not _has_model(module):
        raise ArgumentError(
            f"{type(module).__name__} has no model: pass `backbone=`, define `forward(inputs) -> scores`, or mix "
            "TPAUCModule into a LightningModule that has a `forward`."
        )


def _accept(module: TPAUCModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: check that there is a model for them, and rename them to its names."""
    if not _has_model(module) and any(name.startswith(f"{prefix}backbone.") for name in state):
        raise ArgumentError(
            f"The weights are those of a backbone, which {type(module).__name__} does not have: pass `backbone=`, "
            "as in `TPAUCModule.load_from_checkpoint(path, backbone=net)`."
        )
    ours = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    state.update({prefix + name: value for name, value in checkpoint_files.own_names(module, ours).items()})


def _compile_model_alone(module: LightningModule) -> None:
    """Leave only ``forward`` compiled in a module that a Trainer was given as ``torch.compile(module)``.

    Lightning compiles the steps as well. They change state that a compiled backward pass reads later, so the gradients
    would be wrong. Little is lost, since a step adds only a few sorts to the model's own work.
    """
    context: Any = module._compiler_ctx
    for step in ("training_step", "validation_step", "test_step", "predict_step") if context is not None else ():
        setattr(module, step, context[f"original_{step}"])
