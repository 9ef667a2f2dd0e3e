"""A LightningModule that scores examples and reports how well it ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch import Tensor, nn
from torchmetrics import MetricCollection

from lightning_tpauc.algorithms import STACO, Algorithm
from lightning_tpauc.data.core.batch import EvalBatch
from lightning_tpauc.data.core.subset_indices import check_loader
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.averaging import master_dtype
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.lightning_fixes.compiled import own_names
from lightning_tpauc.lightning_fixes.hooks import KeepsDuties, duty
from lightning_tpauc.lightning_fixes.mixing import refuse_bases, refuse_taken
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import ObjectiveRatios
from lightning_tpauc.metrics.further import FurtherMetrics, further_metrics
from lightning_tpauc.metrics.names import passes_below
from lightning_tpauc.metrics.objective import wants_algorithm_scores
from lightning_tpauc.metrics.reporting import IGNORED, Rectangle, as_rectangles, build_metrics
from lightning_tpauc.scoring.activation import is_squashed, warn_of_activation
from lightning_tpauc.scoring.calling import call_model, one_score, scores_of
from lightning_tpauc.scoring.forward_passes import explained_dtypes
from lightning_tpauc.scoring.labelled_batches import inputs_and_target, inputs_to_predict
from lightning_tpauc.scoring.operating_point import OperatingPoint
from lightning_tpauc.scoring.trained_start import TrainedStart

__all__ = ("ScoringModule",)

#: Name of the only metric of a validation that is not a number and is not logged.
RATIOS = "objective_ratios"

_ATTRIBUTES = ("algorithm", "score_activation", "input_layout", "operating_point", "trained_start")


class ScoringModule(KeepsDuties, LightningModule):
    """Scores examples by a backbone, a subclass's ``forward`` or a class mixed in; validates, tests and predicts.

    Args:
        algorithm: the training method, which knows the rectangle to report and whether it takes raw scores. STACO if
            ``None``.
        backbone: maps ``inputs`` to scores; see :class:`~lightning_tpauc.TPAUCModule`.
        score_activation: what lies between raw scores and the algorithm, ``"identity"`` or ``"sigmoid"``.
        rectangles: further (min_tpr, max_fpr) pairs to report.
        log_objective: also report the exact training objective F, on the evaluated data.
        metrics: torchmetrics to report beside ours.
        **kwargs: passed on to the next class, for mixing in.

    Raises:
        ArgumentError: if ``score_activation`` is unknown or a rectangle is not inside the unit square.

    Example:
        >>> from lightning_tpauc.algorithms import STACO
        >>> module = ScoringModule(STACO(), torch.nn.Linear(3, 1), score_activation="sigmoid")
        >>> module.raw_scores(torch.zeros(2, 3)).shape, module.algorithm_scores(torch.zeros(2, 3)).shape
        (torch.Size([2]), torch.Size([2]))
    """

    #: What the model decides by; see :class:`~lightning_tpauc.DecisionThreshold`.
    operating_point: OperatingPoint | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        refuse_bases(cls)
        super().__init_subclass__(**kwargs)

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        backbone: nn.Module | None = None,
        score_activation: Literal["identity", "sigmoid"] = "identity",
        rectangles: Sequence[tuple[float, float]] = (),
        log_objective: bool = False,
        metrics: FurtherMetrics | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice(score_activation, "score_activation", ("identity", "sigmoid"))
        self.register_load_state_dict_pre_hook(_accept)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        #: Whether the user left the algorithm to us; a checkpoint then sets the rectangle to evaluate.
        self.algorithm_is_default = algorithm is None
        algorithm = STACO() if algorithm is None else algorithm
        _check_kinds(algorithm, backbone)
        refuse_taken(self, *_ATTRIBUTES, *(["backbone"] if backbone is not None else []))
        self._has_own_backbone = backbone is not None
        #: Whether a class mixed in has a ``forward`` that scores.
        self._inherits_forward = (
            backbone is None and getattr(super().forward, "__func__", None) is not LightningModule.forward
        )
        if backbone is not None:
            self.backbone: Any = backbone  # any type, so that a class mixed in may declare another one
        self.algorithm, self.score_activation = algorithm, score_activation
        self._reported = as_rectangles(rectangles), log_objective, further_metrics(metrics)
        self.val_metrics: MetricCollection = self._metrics("val/")
        self.test_metrics: MetricCollection = self._metrics("test/")
        #: Measures the weights that a new run starts from.
        self.trained_start = TrainedStart()
        #: Names of areas that were 0 in this run, of which a warning told.
        self._blind_said: set[str] = set()
        #: What the inputs in training consist of; see :func:`~lightning_tpauc.data.core.tree_utils.layout`.
        self.input_layout: Any = None
        self._activation_checked = False
        #: Metrics of all data loaders but the first, during an evaluation; the first one's are the two above.
        self._further_metrics: list[MetricCollection] = []
        #: Objective of the last validation's scores divided by that of a constant model, at growing tightness.
        self.held_out_ratios: list[float] = []

    # ---------------------------------------------------------------- scores

    def forward(self, inputs: Any) -> Tensor:
        """The output of the backbone, or of the class mixed in, for ``inputs``; see :func:`call_model`.

        Raises:
            ArgumentError: if there is no model.
        """
        if self._inherits_forward:
            return cast(Tensor, call_model(super().forward, inputs))
        if not self._has_own_backbone:  # a subclass may have its own
            self.require_model()
        return cast(Tensor, call_model(self.backbone, inputs))

    @property
    def has_model(self) -> bool:
        """Whether there is a model that scores."""
        defines_forward = type(self).forward is not ScoringModule.forward
        return defines_forward or self._inherits_forward or hasattr(self, "backbone")

    def require_model(self) -> None:
        """Raise :class:`ArgumentError` unless there is a model that scores."""
        if not self.has_model:
            msg = (
                f"{type(self).__name__} has no model: pass `backbone=`, define `forward(inputs) -> scores`, or mix "
                "TPAUCModule into a LightningModule that has a `forward`."
            )
            raise ArgumentError(msg)

    @property
    def score_dtype(self) -> torch.dtype:
        """float32, or float64 where the model computes in double precision."""
        parameter = next(self.parameters(), None)
        return master_dtype(parameter.dtype if parameter is not None else torch.float32)

    def raw_scores(self, inputs: Any) -> Tensor:
        """Scores as a 1-D tensor in float32 or better, whatever precision the model computes in.

        Raises:
            ArgumentError: if the model does not return one score per example.
        """
        with explained_dtypes(inputs, self):
            output = call_model(self, inputs)
        scores = scores_of(output)
        if not self._activation_checked and scores.requires_grad:
            self._activation_checked = True
            squashed = is_squashed(scores, getattr(self, "backbone", None))
            warn_of_activation(self.algorithm, self.score_activation, squashed=squashed)
        return one_score(scores.to(master_dtype(scores.dtype)))

    def algorithm_scores(self, inputs: Any) -> Tensor:
        """Scores for the algorithm: :meth:`raw_scores`, to which ``score_activation`` is applied."""
        scores = self.raw_scores(inputs)
        return scores.sigmoid() if self._algorithm_activation == "sigmoid" else scores

    @property
    def _algorithm_activation(self) -> Literal["identity", "sigmoid"]:
        return "identity" if self.algorithm.takes_logits else self.score_activation

    @property
    def _objective_activation(self) -> Literal["identity", "sigmoid"] | None:
        """``None`` if a subclass makes the algorithm's scores in its own way, perhaps not of the raw ones."""
        is_own = type(self).algorithm_scores is not ScoringModule.algorithm_scores
        return None if is_own else self._algorithm_activation

    def full_precision(self) -> AbstractContextManager[Any]:
        """Context that turns mixed precision off, for the pairwise loss."""
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    # ---------------------------------------------------------------- evaluation

    def evaluate_for(self, min_tpr: float, max_fpr: float) -> None:
        """Report the rectangle that a checkpoint was trained for as ``tpauc``."""
        self.algorithm.min_tpr, self.algorithm.max_fpr = min_tpr, max_fpr
        self.val_metrics = self._metrics("val/").to(self.device)
        self.test_metrics = self._metrics("test/").to(self.device)
        self._further_metrics.clear()

    def _metrics(self, prefix: str) -> MetricCollection:
        others, log_objective, further = self._reported
        surrogate = getattr(self.algorithm, "surrogate", None) if log_objective else None
        own = Rectangle(self.algorithm.min_tpr, self.algorithm.max_fpr)
        metrics = build_metrics(own, others, log_objective, surrogate, self._objective_activation, prefix, further)
        if prefix == "val/" and self.algorithm.can_shrink_rectangle:
            metrics.add_metrics({RATIOS: self._ratios()})
        return metrics

    def _ratios(self) -> ObjectiveRatios:
        surrogate = getattr(self.algorithm, "surrogate", "hinge")
        return ObjectiveRatios((), surrogate, self._objective_activation, ignore_index=IGNORED)

    def objective_grid(self) -> Sequence[float]:
        """Values of the algorithm's ``tightness`` at which this evaluation computes the objective; none by default."""
        return ()

    @duty("after", cooperative=False)
    def validation_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect raw scores and targets, separately for each data loader."""
        self._evaluate(self.val_metrics, batch, dataloader_idx)

    @duty("after", cooperative=False)
    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect raw scores and targets, separately for each data loader."""
        self._evaluate(self.test_metrics, batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:  # noqa: ARG002
        """Raw scores, what is decided on them and, for batches of a ``PosNegDataModule``, which examples they are."""
        if isinstance(batch, EvalBatch):
            real = batch.example_id >= 0
            scores = self.raw_scores(batch.inputs)[real]
            return {"example_id": batch.example_id[real], "score": scores, **self._decided(scores)}
        scores = self.raw_scores(inputs_to_predict(batch, self._known_layout(batch)))
        return {"score": scores, **self._decided(scores)}

    def _decided(self, scores: Tensor) -> dict[str, Tensor]:
        return self.operating_point.decide(scores) if self.operating_point is not None else {}

    @duty("before")
    def on_validation_epoch_start(self) -> None:
        """Forget what an interrupted validation has collected, and check the loaders."""
        _check_loaders(self.trainer.val_dataloaders)
        self._forget_batches(self.val_metrics)

    @duty("before")
    def on_test_epoch_start(self) -> None:
        """Forget what an interrupted test has collected, and check the loaders."""
        _check_loaders(self.trainer.test_dataloaders)
        self._forget_batches(self.test_metrics)

    @duty("before")
    def on_predict_epoch_start(self) -> None:
        """Check the loaders."""
        _check_loaders(self.trainer.predict_dataloaders)

    @duty("after", cooperative=False)
    def on_validation_epoch_end(self) -> None:
        """Log ``val/tpauc`` and the other metrics; the sanity check logs nothing, since it sees only a few batches.

        If there are several data loaders, the second one's value is ``val/tpauc/dataloader_idx_1``.
        """
        self._log_metrics(self.val_metrics, self.loader_metrics("val"))

    @duty("after", cooperative=False)
    def on_test_epoch_end(self) -> None:
        """Log ``test/tpauc`` and the other metrics, named as in validation."""
        self._log_metrics(self.test_metrics, self.loader_metrics("test"))

    def _evaluate(self, first: MetricCollection, batch: Any, dataloader_idx: int) -> None:
        inputs, target = inputs_and_target(batch, self._known_layout(batch))
        metrics = self._metrics_of(first, dataloader_idx + 1)[-1]
        own = {"algorithm_scores": self.algorithm_scores(inputs)} if wants_algorithm_scores(metrics) else {}
        metrics.update(self.raw_scores(inputs), target, **own)

    def _known_layout(self, batch: Any) -> Any:
        datamodule: Any = getattr(self._trainer, "datamodule", None)
        if self.input_layout is None and not isinstance(batch, EvalBatch) and hasattr(datamodule, "input_layout"):
            self.input_layout = datamodule.input_layout()  # before the first step of a training
        return self.input_layout

    def _metrics_of(self, first: MetricCollection, num_loaders: int) -> list[MetricCollection]:
        while len(self._further_metrics) < num_loaders - 1:
            self._further_metrics.append(self._metrics(first.prefix or "").to(self.device))
        return [first, *self._further_metrics][:num_loaders]

    def loader_metrics(self, stage: Literal["val", "test"]) -> list[tuple[str, MetricCollection]]:
        """The metrics of each data loader, with what their names end in if there are several."""
        validates = stage == "val"
        first = self.val_metrics if validates else self.test_metrics
        num_loaders = len(self.trainer.num_val_batches if validates else self.trainer.num_test_batches)
        several = self._metrics_of(first, num_loaders)
        return [(f"/dataloader_idx_{k}" if num_loaders > 1 else "", metrics) for k, metrics in enumerate(several)]

    def _log_metrics(self, first: MetricCollection, several: list[tuple[str, MetricCollection]]) -> None:
        # Every rank computes the same metrics, even if it had no batch, since computing them is a collective.
        for number, (suffix, metrics) in enumerate(several):
            checks = self.trainer.sanity_checking
            grid = self.objective_grid() if number == 0 else ()
            for metric in metrics.values(copy_state=False):
                if isinstance(metric, ObjectiveRatios):
                    metric.rectangles = [self.algorithm.rectangle_at(tightness) for tightness in grid]
            values = metrics.compute() if not checks or self.trained_start.is_measured else {}
            ratios = values.pop(f"{metrics.prefix}{RATIOS}", None)
            if number == 0 and ratios is not None:
                self.held_out_ratios = ratios.tolist()
            for name, value in values.items():
                if checks:
                    self.trained_start.note(name + suffix, value)
                else:
                    log_replicated(self, name + suffix, value, prog_bar=name.endswith("/tpauc"))
            if not checks:
                self._say_blind(metrics.prefix or "", values, suffix)
        self._forget_batches(first)

    def _say_blind(self, prefix: str, values: dict[str, Tensor], suffix: str) -> None:
        """Warn that an area of 0 is a curve below the rectangle: in every evaluation, and once in a training.

        A training also warns once of a further area that a callback monitors.
        """
        fits = self.trainer.state.fn == TrainerFn.FITTING
        monitored = {getattr(callback, "monitor", None) for callback in self.trainer.callbacks}  # type: ignore[attr-defined]
        for name, value in values.items():
            trained = name == f"{prefix}tpauc"
            asked = trained or (fits and name.startswith(f"{prefix}tpauc") and f"{name}{suffix}" in monitored)
            if not asked or float(value) != 0 or (fits and name in self._blind_said):
                continue
            where = "the ROC curve passes below the rectangle"
            if trained:
                tpr = float(values[f"{prefix}tpr_at_max_fpr"])
                where = passes_below(tpr, self.algorithm.min_tpr, self.algorithm.max_fpr)
            if fits:
                self._blind_said.add(name)
                also = f"{prefix}tpr_at_max_fpr{suffix} or " if trained else ""
                where += (
                    ". EarlyStopping and ModelCheckpoint can't tell such epochs apart: monitor "
                    f"{also}{prefix}auroc{suffix}, with mode='max'"
                )
            rank_zero_warn(f"{name}{suffix} is 0: {where}.", category=TPAUCWarning)

    def _forget_batches(self, first: MetricCollection) -> None:
        first.reset()
        self._further_metrics.clear()


def _check_loaders(loaders: Any) -> None:
    for loader in CombinedLoader(loaders).flattened:
        check_loader(loader)


def _accept(module: ScoringModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: check that there is a model for them, and rename them to its names."""
    if not module.has_model and any(name.startswith(f"{prefix}backbone.") for name in state):
        msg = (
            f"The weights are those of a backbone, which {type(module).__name__} does not have: pass `backbone=`, "
            "as in `TPAUCModule.load_from_checkpoint(path, backbone=net)`."
        )
        raise ArgumentError(msg)
    ours = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    state.update({prefix + name: value for name, value in own_names(module, ours).items()})


def _check_kinds(algorithm: Any, backbone: Any) -> None:
    if not isinstance(algorithm, Algorithm):
        msg = f"Expected `algorithm` to be an Algorithm such as STACO(min_tpr=0.5, max_fpr=0.5), but got {algorithm!r}."
        raise ArgumentError(msg)
    if backbone is not None and not isinstance(backbone, nn.Module):
        msg = (
            f"Expected `backbone` to be a torch.nn.Module, but got {backbone!r}. "
            "Arguments of a class that is mixed in are passed by keyword."
        )
        raise ArgumentError(msg)
