"""Two-way partial AUC for PyTorch Lightning.

Names are imported when they are first used, so that ``import lightning_tpauc`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lightning_tpauc.version import __version__

if TYPE_CHECKING:
    from lightning_tpauc.algorithms import STACO
    from lightning_tpauc.card import model_card
    from lightning_tpauc.comparison import compare
    from lightning_tpauc.data import (
        DigitsDataModule,
        EvalBatch,
        LIBSVMDataModule,
        MedMNISTDataModule,
        NegativeStream,
        OGBMoleculesDataModule,
        PosNegBatch,
        PosNegDataModule,
        SMILESDataModule,
    )
    from lightning_tpauc.estimator import TPAUCClassifier, tpauc_scorer
    from lightning_tpauc.loss import TPAUCLoss
    from lightning_tpauc.metrics import ExactObjective, TwoWayPartialAUROC
    from lightning_tpauc.metrics.figures import ROCFigure
    from lightning_tpauc.module import TPAUCModule
    from lightning_tpauc.scoring.prediction import PredictionWriter
    from lightning_tpauc.scoring.thresholds import DecisionThreshold
    from lightning_tpauc.training.optimizer import DampedAdam
    from lightning_tpauc.training.stages import StageCallback

__all__ = (
    "STACO",
    "DampedAdam",
    "DecisionThreshold",
    "DigitsDataModule",
    "EvalBatch",
    "ExactObjective",
    "LIBSVMDataModule",
    "MedMNISTDataModule",
    "NegativeStream",
    "OGBMoleculesDataModule",
    "PosNegBatch",
    "PosNegDataModule",
    "PredictionWriter",
    "ROCFigure",
    "SMILESDataModule",
    "StageCallback",
    "TPAUCClassifier",
    "TPAUCLoss",
    "TPAUCModule",
    "TwoWayPartialAUROC",
    "__version__",
    "algorithms",
    "compare",
    "comparison",
    "data",
    "errors",
    "functional",
    "metrics",
    "model_card",
    "models",
    "tpauc_scorer",
)

_MODULES = ("algorithms", "comparison", "data", "errors", "functional", "metrics", "models")

_HOME = {
    "STACO": "algorithms",
    "compare": "comparison",
    "model_card": "card",
    "DampedAdam": "training.optimizer",
    "StageCallback": "training.stages",
    "ExactObjective": "metrics",
    "TwoWayPartialAUROC": "metrics",
    "TPAUCLoss": "loss",
    "TPAUCClassifier": "estimator",
    "tpauc_scorer": "estimator",
    "TPAUCModule": "module",
    "DecisionThreshold": "scoring.thresholds",
    "PredictionWriter": "scoring.prediction",
    "ROCFigure": "metrics.figures",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lightning_tpauc.{name}")
    if name in __all__:
        return getattr(importlib.import_module(f"lightning_tpauc.{_HOME.get(name, 'data')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
