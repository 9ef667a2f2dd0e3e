"""What a model decides by: the thresholds that scores give, what they do, and what is known of new examples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.data.examples import listed
from lightning_tpauc.distributed import starts_processes
from lightning_tpauc.errors import ArgumentError, TooFewExamplesError, silent
from lightning_tpauc.functional.calibration import (
    METHODS,
    Calibration,
    CalibrationMethod,
    calibrated_probability,
    fit_calibration,
)
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.functional.operating_points import (
    Criterion,
    Decisions,
    check_rule,
    decision_threshold,
    exact_interval,
)
from lightning_tpauc.metrics.reporting import Scored
from lightning_tpauc.scoring.evaluation import Collected, evaluation_of
from lightning_tpauc.scoring.forward import device_batches, evaluation_mode
from lightning_tpauc.scoring.labels import rectangles_of

#: What says how a threshold is chosen: arguments of :class:`DecisionThreshold`, kept in an :class:`OperatingPoint`.
_RULE = ("criterion", "cost_ratio", "confidence", "min_precision", "max_alert_rate")


@dataclass(frozen=True)
class Choice:
    """What was chosen for one output of a model."""

    decisions: Decisions
    rectangle: tuple[float, float]
    calibration: Calibration | None = None
    #: How far the rates of the nearest threshold lie from the rectangle; 0 if those of one lie in it.
    missed_by: float = 0.0
    #: What would have been chosen without a confidence.
    without: Decisions | None = None
    #: Why there is no guarantee, where there are too few examples for it.
    too_few: str = ""


@dataclass(frozen=True, repr=False)
class OperatingPoint:
    """What a model decides by: the threshold of each output that scores gave, and what it did to them.

    ``print`` shows the rates with their exact (Clopper-Pearson) 95% intervals, and what holds for new examples.

    Attributes:
        choices: of each output; ``None`` where a class was missing.
        criterion: by which they were chosen.
        step: how many training batches the weights that gave the scores had seen.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms.
        names: of the labels, in the order of the outputs; ``None`` for a model with one output.
        confidence: how sure it had to be that new examples keep the rectangle's bounds; ``None`` if that was not asked.
        min_precision: lower bound of the precision.
        max_alert_rate: upper bound of the share that is called positive.
        held_out: whether the examples neither trained the model nor chose its weights.
        grouped: whether they belong to groups, such as patients; then no intervals are shown, which would count rows.
        threshold: an example is called positive if its raw score is at least this. It follows from the choices; of
            several labels it is a dictionary by name, as ``decisions`` and ``calibration`` are.

    Example:
        >>> choice = Choice(Decisions(0.5, tp=30, fp=4, num_pos=40, num_neg=100), rectangle=(0.5, 0.5))
        >>> point = OperatingPoint((choice,), "youden", step=7)
        >>> point
        Threshold 0.5 (youden): sensitivity 0.750 (0.588 to 0.873), specificity 0.960 (0.901 to 0.989), \
precision 0.882 (0.725 to 0.967), with exact 95% intervals.
        No guarantee for new examples.
        >>> point.decide(torch.tensor([0.4, 0.5, torch.nan]))
        {'decision': tensor([ 0,  1, -1])}
        >>> points = OperatingPoint((choice, None), "youden", step=7, names=("liver", "lung"))
        >>> points.threshold
        {'liver': 0.5, 'lung': None}
        >>> OperatingPoint.from_dict(json.loads(points.to_json())) == points
        True
    """

    choices: tuple[Choice | None, ...]
    criterion: Criterion
    step: int
    cost_ratio: float = 1.0
    names: tuple[str, ...] | None = None
    confidence: float | None = None
    min_precision: float | None = None
    max_alert_rate: float | None = None
    held_out: bool = False
    grouped: bool = False
    threshold: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", self._by_name(self.thresholds))

    @property
    def thresholds(self) -> list[float | None]:
        """The threshold of each output."""
        return [None if choice is None else choice.decisions.threshold for choice in self.choices]

    @property
    def decisions(self) -> Any:
        """The threshold and the counts at it on validation data."""
        return self._by_name([None if choice is None else choice.decisions for choice in self.choices])

    @property
    def calibration(self) -> Any:
        """The map to probabilities, or ``None``."""
        return self._by_name([None if choice is None else choice.calibration for choice in self.choices])

    @property
    def calibration_method(self) -> CalibrationMethod | None:
        """How the scores of any output become probabilities."""
        return next((c.calibration.method for c in self.choices if c is not None and c.calibration is not None), None)

    def _by_name(self, values: list[Any]) -> Any:
        return values[0] if self.names is None else dict(zip(self.names, values, strict=True))

    def is_for(self, rectangles: Sequence[tuple[float, float]]) -> bool:
        """Whether every threshold was chosen for the rectangle of its output."""
        known = [None if choice is None else choice.rectangle for choice in self.choices]
        return len(known) == len(rectangles) and all(own in (None, r) for own, r in zip(known, rectangles, strict=True))

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64: 1 for positive, 0 for negative, -1 where there is no score or no threshold.

        Before it ``probability``, float64, if any output is calibrated; nan where there is none.

        Args:
            scores: raw scores, tensor ``(N,)``, or ``(N, K)`` of several labels.
        """
        if scores.device.type == "mps":  # Apple's GPUs know no float64
            scores = scores.cpu()
        # in float64: the threshold lies between two scores, which float32 may not tell from it
        columns = scores.detach().double().reshape(-1, len(self.choices))
        decision, probability = torch.full_like(columns, -1.0), torch.full_like(columns, math.nan)
        for k, choice in enumerate(self.choices):
            if choice is not None:
                reached = (columns[:, k] >= choice.decisions.threshold).double()
                decision[:, k] = reached.masked_fill(columns[:, k].isnan(), -1.0)
                if choice.calibration is not None:
                    probability[:, k] = calibrated_probability(columns[:, k], choice.calibration)
        known = {} if self.calibration_method is None else {"probability": probability.reshape(scores.shape)}
        return {**known, "decision": decision.long().reshape(scores.shape)}

    def __repr__(self) -> str:
        lines: list[str] = []
        claims: dict[str, list[str]] = {}
        away: list[str] = []
        for name, choice in zip(self.names or ("",), self.choices, strict=True):
            if choice is None:
                lines.append(f"No threshold of {name}: a class has no example.")
                continue
            lines.append(f"Threshold {f'of {name} ' if name else ''}{_described(choice.decisions, self)}")
            claims.setdefault(self._claim(choice), []).append(name)
            asked = "{}TPR >= {:g}, FPR <= {:g}".format(f"{name}: " if name else "", *choice.rectangle)
            away += [f"{asked} is missed by {choice.missed_by:.2g}"] if choice.missed_by else []
        lines[20:] = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
        for claim, names in claims.items():
            lines.append(f"{listed(names)}: {claim}" if self.names and len(claims) > 1 else claim)
        if away:
            of_labels = f" of {len(away)} of {len(self.choices)} labels" if self.names else ""
            lines.append(f"No threshold lies in the rectangle{of_labels} on these data: {listed(away)}.")
        return "\n".join(lines)

    def _claim(self, choice: Choice) -> str:
        """What is known of new examples, and what it costs."""
        used, plain, signs = choice.decisions, choice.without, {"min_tpr": "TPR >= ", "max_fpr": "FPR <= "}
        asked = dict(zip(signs, choice.rectangle, strict=True))
        said = {name: f"{sign}{asked[name]:g}" for name, sign in signs.items() if 0 < asked[name] < 1}
        kept, lost = ([said[name] for name in said if (name in used.guaranteed) == held] for held in (True, False))
        if choice.too_few or self.confidence is None or not self.held_out or not said:
            claim = f"No guarantee for new examples{f': {choice.too_few}' if choice.too_few else '.'}"
            if not self.held_out and self.confidence is not None:
                claim += (
                    " These examples chose the weights as well, so that the rates are too good: keep some apart, "
                    "`PosNegDataModule(calibration_fraction=0.2)`."
                )
        else:
            claim = f"{' and '.join(kept)} for new examples at {100 * self.confidence:g}% confidence. " if kept else ""
            more = f", or take {used.times} times as many examples" if used.times > 1 else ""
            claim += f"No guarantee of {' and '.join(lost)}: ask for less{more}. " if lost else ""
        if plain is not None and plain[1:3] != used[1:3]:
            claim = (
                f"{claim.strip()} The room for new examples has a price: sensitivity {used.sensitivity:.3f} instead of "
                f"{plain.sensitivity:.3f}, FPR {1 - used.specificity:.3f} instead of {1 - plain.specificity:.3f}."
            )
        return claim.strip()

    def to_json(self) -> str:
        """All of it as text, for the metadata of an exported model; :meth:`from_dict` reads what it parses to."""
        return json.dumps(asdict(self), default=lambda value: value.tolist())

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> OperatingPoint:
        """What :func:`dataclasses.asdict` was applied to, also after a checkpoint or JSON changed its containers."""

        def decisions(of: Sequence[Any]) -> Decisions:
            return Decisions(of[0], of[1], of[2], of[3], of[4], tuple(of[5]), *of[6:])

        def calibration(of: Sequence[Any]) -> Calibration:
            return Calibration(of[0], *(torch.as_tensor(part, dtype=torch.float64) for part in of[1:]))

        def choice(of: Mapping[str, Any]) -> Choice:
            read: Any = {"decisions": decisions, "without": decisions, "rectangle": tuple, "calibration": calibration}
            return Choice(**{**of, **{name: kind(of[name]) for name, kind in read.items() if of[name] is not None}})

        choices = tuple(None if each is None else choice(each) for each in state["choices"])
        known = {each.name: state[each.name] for each in fields(cls) if each.init and each.name in state}
        names = known.get("names")
        return cls(**{**known, "choices": choices, "names": None if names is None else tuple(names)})


def _described(found: Decisions, point: OperatingPoint) -> str:
    """Rates, with intervals where examples are independent."""
    texts = []
    for name, (count, total) in found.shares.items():
        low, high = exact_interval(count, total)
        interval = "" if point.grouped else f" ({low:.3f} to {high:.3f})"
        texts.append(f"{name} {count / total:.3f}{interval}" if total else f"no {name}")
    end = "." if point.grouped else ", with exact 95% intervals."
    lowest, highest = point.min_precision or 0.0, point.max_alert_rate or 1.0
    missed = [f"precision >= {lowest:g}"] if found.precision < lowest - 1e-12 else []
    missed += [f"an alert rate <= {highest:g}"] if found.alert_rate > highest + 1e-12 else []
    end += f" It misses {' and '.join(missed)}: no threshold meets all demands." if missed else ""
    return f"{found.threshold:.6g} ({point.criterion}): {', '.join(texts)}{end}"


class DecisionThreshold(Callback):
    r"""Chooses the threshold that decides, for the weights that training leaves.

    It lies in the trained rectangle if any does; see :func:`~lightning_tpauc.functional.decision_threshold`. Every
    validation chooses anew, for the module's weights and rectangle, and logs ``val/threshold``,
    ``val/sensitivity_at_threshold``, ``val/specificity_at_threshold`` and ``val/precision_at_threshold``. Checkpoints
    have the threshold beside the weights that it was chosen for. After ``Trainer.fit`` it is that of the module's
    weights, and a line says what it does.

    **Which examples choose.** Those that the data module keeps apart for it, ``calibration_dataset`` or
    ``calibration_fraction``, which neither train the model nor choose its weights: new examples then meet the demands
    with the given ``confidence``. With ``groups`` the groups are counted, and not their examples. Without such a part
    the validation data choose, whose rates are somewhat too good; then nothing is guaranteed.

    - ``module.threshold`` is the number, also after ``load_from_checkpoint``; ``module.operating_point`` says more.
    - ``Trainer.test`` logs the same for the test data, each with the exact (Clopper-Pearson) 95% interval,
      ``test/sensitivity_at_threshold_lower`` and ``_upper``. With ``groups`` the interval is wider, since rows of a
      group are not independent (Korn and Graubard).
    - ``Trainer.predict`` returns ``decision``, and ``probability`` if it is calibrated, beside ``score``;
      :class:`~lightning_tpauc.PredictionWriter` writes them. An example whose score is nan has the decision -1.

    The module adds this callback with its defaults if the Trainer has none; ``Trainer.validate`` then chooses as the
    module's threshold was chosen before. Pass your own to choose by another criterion, also for a model that is trained
    already: ``Trainer(callbacks=[DecisionThreshold("f1")]).validate(module, data)``. If the validation data lack a
    class, a threshold for these weights and this rectangle stays as it is.

    Args:
        criterion: ``"youden"`` (the largest sum of sensitivity and specificity), ``"f1"``, ``"min_cost"``,
            ``"max_sensitivity"`` at a false positive rate of at most ``max_fpr``, or ``"max_specificity"`` at a true
            positive rate of at least ``min_tpr``.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms; positives are taken to be as
            frequent as in the data.
        calibration: how scores become probabilities, for the same frequency of positives: ``"isotonic"``, ``"sigmoid"``
            (Platt), ``"auto"`` (isotonic from 1000 examples of each class on) or ``None``. No decision changes by it.
        confidence: how sure it must be that new examples keep the rectangle's bounds, in (0, 1); ``None`` asks only
            these examples. If they are too few, the threshold comes without a guarantee, and a line says what they
            would allow.
        min_precision: lower bound of the precision, on these examples.
        max_alert_rate: upper bound of the share of these examples that is called positive.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_tpauc import DigitsDataModule, TPAUCModule
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        >>> quiet["enable_model_summary"] = False
        >>> choose = DecisionThreshold("max_specificity", calibration="sigmoid")
        >>> trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, callbacks=[choose], **quiet)
        >>> module = TPAUCModule(torch.nn.Linear(64, 1))
        >>> trainer.fit(module, DigitsDataModule(val_fraction=0.2))
        >>> module.operating_point.decisions.sensitivity >= module.algorithm.min_tpr
        True
        >>> sorted(trainer.predict(module, DigitsDataModule(val_fraction=0.2))[0])
        ['decision', 'example_id', 'probability', 'score']
    """

    def __init__(
        self,
        criterion: Criterion = "youden",
        cost_ratio: float = 1.0,
        calibration: CalibrationMethod | Literal["auto"] | None = None,
        confidence: float | None = 0.95,
        min_precision: float | None = None,
        max_alert_rate: float | None = None,
    ) -> None:
        check_rule(criterion, cost_ratio, confidence, min_precision, max_alert_rate)
        if calibration is not None:
            check_choice(calibration, "calibration", METHODS)
        self.criterion, self.cost_ratio, self.calibration = criterion, float(cost_ratio), calibration
        self.confidence, self.min_precision, self.max_alert_rate = confidence, min_precision, max_alert_rate
        self._why_uncalibrated = ""

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Choose, before the metrics that judge decisions are computed; of several data loaders the first one's."""
        if trainer.sanity_checking and evaluation_of(trainer).start.metrics is None:
            return
        pl_module.operating_point = self.choose(pl_module, *self._examples(trainer, pl_module))
        if trainer.state.fn != TrainerFn.FITTING:
            self.say(pl_module)
            if starts_processes(trainer):
                rank_zero_info("It ends with these processes, and the module keeps its former one: use one process.")

    def _examples(self, trainer: Trainer, module: Any, *, again: bool = False) -> tuple[Scored, bool]:
        """The scores to choose on, and whether their examples are kept apart for it.

        Validation data have been scored, unless it is to be done ``again``.
        """
        # `trainer.datamodule` may be that of an earlier run
        source: Any = getattr(trainer, f"{TrainerFn(trainer.state.fn).value}_loop")._data_source.instance
        loader = source.calibration_dataloader() if hasattr(source, "calibration_dataloader") else None
        if loader is None and not again:
            return module._collected[0].scored, False
        count = trainer.num_val_batches[0] if loader is None else len(loader)
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Trainer sets it at run time
            count = min(count, trainer.num_val_batches[0])
        batches = CombinedLoader(trainer.val_dataloaders).flattened[0] if loader is None else loader
        limit, collected = None if math.isinf(count) else int(count), Collected(module, loader)
        with isolate_rng(), evaluation_mode(module):
            for batch in device_batches(module, islice(batches, limit), "Choosing the threshold", limit):
                collected.take(module, batch)
        return collected.scored, loader is not None

    def choose(self, module: Any, scored: Scored, held_out: bool = False) -> OperatingPoint | None:
        """The operating point of scores, the same on every rank that has the same; ``None`` if no label has one."""
        labels, rectangles, step = module.trained_labels, rectangles_of(module), module.training_state.weights_step
        columns = zip(scored.columns(), rectangles, strict=True)
        choices = tuple(self._choice(own, rectangle, held_out=held_out) for own, rectangle in columns)
        if any(choices):
            names, rule = None if labels is None else labels.names, {name: getattr(self, name) for name in _RULE}
            grouped = scored.groups is not None
            return OperatingPoint(choices, step=step, names=names, held_out=held_out, grouped=grouped, **rule)
        before: OperatingPoint | None = module.operating_point
        return before if before is not None and before.step == step and before.is_for(rectangles) else None

    def _choice(self, own: Scored, rectangle: tuple[float, float], *, held_out: bool) -> Choice | None:
        choose = partial(decision_threshold, own.raw, own.target, *rectangle, validate_args=False)
        asked = {name: getattr(self, name) for name in _RULE if name != "confidence"}
        with silent():  # the metrics warn of a missing class
            plain = chosen = choose(**asked)
            if plain is None or chosen is None:
                return None
            too_few, calibration, missed_by = "", None, 0.0
            if self.confidence is not None:
                try:
                    chosen = choose(**asked, confidence=self.confidence, groups=own.groups) or plain
                except TooFewExamplesError as error:
                    too_few = str(error)
        min_tpr, max_fpr = rectangle
        if not plain.lies_in(min_tpr, max_fpr) and (nearest := choose("youden")) is not None:
            missed_by = math.hypot(max(0, min_tpr - nearest.sensitivity), max(0, 1 - nearest.specificity - max_fpr))
        if self.calibration is not None:
            try:
                calibration = fit_calibration(own.raw, own.target, self.calibration)
            except ArgumentError as error:  # a model that has just begun may rank the wrong way round
                self._why_uncalibrated = str(error)
        if not held_out:
            chosen = chosen._replace(guaranteed=())
        return Choice(chosen, rectangle, calibration, missed_by, plain, too_few)

    def say(self, module: Any) -> None:
        """Say what the threshold does, and if nothing is calibrated."""
        point: OperatingPoint | None = module.operating_point
        if point is None:
            return
        rank_zero_info(repr(point))
        each = zip(point.names or ("",), point.choices, strict=True)
        plain = [name for name, choice in each if choice is not None and choice.calibration is None]
        if self.calibration is not None and plain:
            of_labels = f" of {listed(plain)}" if point.names else ""
            rank_zero_info(f"Predictions will hold no probabilities{of_labels}. {self._why_uncalibrated}")

    def choose_again(self, trainer: Trainer, module: Any) -> None:
        """Score once more, by the weights that the module holds now, and choose."""
        module.operating_point = self.choose(module, *self._examples(trainer, module, again=True))


class DefaultThreshold(DecisionThreshold):
    """What a module adds by itself: outside of training it chooses as the module's threshold was chosen before."""

    @override
    def choose(self, module: Any, scored: Scored, held_out: bool = False) -> OperatingPoint | None:
        before: OperatingPoint | None = module.operating_point
        if before is not None and module.trainer.state.fn != TrainerFn.FITTING:
            for name in _RULE:
                setattr(self, name, getattr(before, name))
            self.calibration = before.calibration_method
        return super().choose(module, scored, held_out)


def recorded_point(module: Any, state: Mapping[str, Any] | None) -> OperatingPoint | None:
    """The point that a checkpoint holds, if it was chosen for the module's rectangles; else a line says what to do."""
    point = None if state is None else OperatingPoint.from_dict(state)
    if point is None or point.is_for(rectangles_of(module)):
        return point
    rank_zero_info("The checkpoint's threshold, for another rectangle, is not used: `Trainer.validate` chooses one.")
    return None
