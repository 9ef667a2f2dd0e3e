"""A LightningModule that scores examples."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_tpauc.algorithms import STACO, Algorithm
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.averaging import master_dtype
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.lightning_fixes.compiled import own_names
from lightning_tpauc.lightning_fixes.subclassing import KeepsDuties, refuse_bases, refuse_taken, refuse_unknown
from lightning_tpauc.scoring.forward import call_model, explained_inputs, one_score, scores_of, scores_of_labels
from lightning_tpauc.scoring.labels import Labels, check_label_settings
from lightning_tpauc.scoring.operating_point import OperatingPoint, OperatingPoints
from lightning_tpauc.training.guards import is_squashed, slope_of, warn_of_activation

_ATTRIBUTES = (
    "algorithm",
    "score_activation",
    "input_layout",
    "operating_point",
    "label_settings",
    "trained_labels",
    "knows_labels",
)


class ScoringModule(KeepsDuties, LightningModule):
    """Scores examples by a backbone, a subclass's ``forward`` or a class mixed in.

    Args:
        algorithm: the training method, which knows the rectangle and whether it takes raw scores. STACO if
            ``None``.
        backbone: maps ``inputs`` to scores; see :class:`~lightning_tpauc.TPAUCModule`.
        score_activation: what lies between raw scores and the algorithm, ``"identity"`` or ``"sigmoid"``.
        tasks: rectangle and weight of labels by name or position, for data with several.
        **kwargs: passed on to the next class, for mixing in.

    Raises:
        ArgumentError: if ``score_activation`` is unknown, or ``tasks`` has options that are none.

    Example:
        >>> from lightning_tpauc.algorithms import STACO
        >>> module = ScoringModule(STACO(), torch.nn.Linear(3, 1), score_activation="sigmoid")
        >>> module.raw_scores(torch.zeros(2, 3)).shape, module.algorithm_scores(torch.zeros(2, 3)).shape
        (torch.Size([2]), torch.Size([2]))
    """

    #: What the model decides by; see :class:`~lightning_tpauc.DecisionThreshold`.
    operating_point: OperatingPoint | OperatingPoints | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        refuse_bases(cls)
        super().__init_subclass__(**kwargs)

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        backbone: nn.Module | None = None,
        score_activation: Literal["identity", "sigmoid"] = "identity",
        tasks: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_unknown(self, kwargs)
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
        algorithm.score_slope = slope_of(score_activation, algorithm)
        self.label_settings = check_label_settings(tasks)
        #: The labels of a model with several outputs; ``None`` for one label, and before data or a checkpoint tell.
        self.trained_labels: Labels | None = None
        #: Whether data or a checkpoint have told which labels there are.
        self.knows_labels = False
        #: What the inputs in training consist of; see :func:`~lightning_tpauc.data.examples.layout`.
        self.input_layout: Any = None
        self._activation_checked = False

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
    def num_labels(self) -> int | None:
        """K of a model with K outputs; ``None`` for one label."""
        return None if self.trained_labels is None else len(self.trained_labels.names)

    @property
    def score_dtype(self) -> torch.dtype:
        """float32, or float64 where the model computes in double precision."""
        parameter = next(self.parameters(), None)
        return master_dtype(parameter.dtype if parameter is not None else torch.float32)

    def raw_scores(self, inputs: Any) -> Tensor:
        """Scores ``(N,)``, or ``(N, K)`` of K labels, in float32 or better, whatever precision the model computes in.

        Raises:
            ArgumentError: if the model does not return one score per example, or one per example and label.
        """
        with explained_inputs(inputs, self):
            output = call_model(self, inputs)
        scores = scores_of(output)
        if not self._activation_checked and scores.requires_grad:
            self._activation_checked = True
            squashed = is_squashed(scores, getattr(self, "backbone", None))
            warn_of_activation(self.algorithm, self.score_activation, squashed=squashed)
        scores, labels = scores.to(master_dtype(scores.dtype)), self.trained_labels
        return one_score(scores) if labels is None else scores_of_labels(scores, labels.names)

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
