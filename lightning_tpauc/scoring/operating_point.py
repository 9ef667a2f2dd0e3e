"""What a model decides by: a threshold, and the map from scores to probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.functional.calibration import Calibration, calibrated_probability
from lightning_tpauc.functional.operating_points import Decisions


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold that validation scores gave, and what it did to them.

    Attributes:
        decisions: the threshold, and the counts at it on validation data.
        criterion: by which it was chosen.
        step: how many training batches the weights had seen that gave the scores.
        nearest: true and false positive rate of the threshold nearest to the rectangle; ``None`` if one lies in it.
        calibration: the map to probabilities, if it was asked for.

    Example:
        >>> import torch
        >>> point = OperatingPoint(Decisions(0.5, tp=3, fp=1, num_pos=4, num_neg=10), "youden", step=7)
        >>> point.decide(torch.tensor([0.4, 0.5]))
        {'decision': tensor([0, 1])}
        >>> OperatingPoint.from_state_dict(point.state_dict()) == point
        True
    """

    decisions: Decisions
    criterion: str
    step: int
    nearest: tuple[float, float] | None = None
    calibration: Calibration | None = None

    @property
    def threshold(self) -> float:
        """The threshold: an example is called positive if its raw score is at least this."""
        return self.decisions.threshold

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64: 1 for positive, 0 for negative; before it ``probability``, float64, if calibrated.

        Args:
            scores: raw scores, tensor ``(N,)``.
        """
        if scores.device.type == "mps":  # Apple's GPUs know no float64
            scores = scores.cpu()
        # in float64: the threshold lies between two scores, which float32 may not tell from it
        decision = (scores.detach().double() >= self.threshold).long()
        if self.calibration is None:
            return {"decision": decision}
        return {"probability": calibrated_probability(scores, self.calibration), "decision": decision}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, text and tensors."""
        calibration = None if self.calibration is None else self.calibration._asdict()
        return {
            **self.decisions._asdict(),
            "criterion": self.criterion,
            "step": self.step,
            "nearest": None if self.nearest is None else list(self.nearest),
            "calibration": calibration,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> OperatingPoint:
        """What :meth:`state_dict` was made of."""
        nearest, calibration = state["nearest"], state["calibration"]
        return cls(
            Decisions(*(state[name] for name in Decisions._fields)),
            state["criterion"],
            state["step"],
            None if nearest is None else (nearest[0], nearest[1]),
            None if calibration is None else Calibration(**calibration),
        )


@dataclass(frozen=True)
class OperatingPoints:
    """What a model with several outputs decides by.

    Attributes:
        points: of each label by its name, in the order of the outputs; ``None`` where a class was missing.

    Example:
        >>> import torch
        >>> liver = OperatingPoint(Decisions(0.5, tp=3, fp=1, num_pos=4, num_neg=10), "youden", step=7)
        >>> points = OperatingPoints({"liver": liver, "lung": None})
        >>> points.threshold
        {'liver': 0.5, 'lung': None}
        >>> points.decide(torch.tensor([[0.4, 2.0], [0.5, 1.0]]))["decision"]
        tensor([[ 0, -1],
                [ 1, -1]])
    """

    points: Mapping[str, OperatingPoint | None]

    @property
    def threshold(self) -> dict[str, float | None]:
        """The threshold of each label."""
        return {name: None if point is None else point.threshold for name, point in self.points.items()}

    @property
    def step(self) -> int:
        """How many training batches the weights had seen that gave the scores."""
        return max((point.step for point in self.points.values() if point is not None), default=0)

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64, and ``probability``, if any label is calibrated; -1 and nan where a label has none.

        Args:
            scores: raw scores, tensor ``(N, K)``.
        """
        columns = zip(self.points.values(), scores.unbind(1), strict=True)
        each = [{} if point is None else point.decide(column) for point, column in columns]
        none = {"probability": torch.full((len(scores),), torch.nan, dtype=torch.float64)}
        none["decision"] = torch.full((len(scores),), -1)
        there = [name for name in none if any(name in own for own in each)]
        device = next((own["decision"].device for own in each if own), scores.device)
        return {name: torch.stack([own.get(name, none[name].to(device)) for own in each], 1) for name in there}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, text and tensors."""
        return {"labels": {n: None if point is None else point.state_dict() for n, point in self.points.items()}}


def restored_point(state: dict[str, Any]) -> OperatingPoint | OperatingPoints:
    """What the ``state_dict`` of either was made of.

    Example:
        >>> restored_point(OperatingPoints({"lung": None}).state_dict())
        OperatingPoints(points={'lung': None})
    """
    if "labels" not in state:
        return OperatingPoint.from_state_dict(state)
    own = {n: None if point is None else OperatingPoint.from_state_dict(point) for n, point in state["labels"].items()}
    return OperatingPoints(own)
