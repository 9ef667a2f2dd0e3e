"""Training methods behind one calling convention."""

from lightning_tpauc.algorithms.aucm import AUCM
from lightning_tpauc.algorithms.base import Algorithm, PreviousScores, Task, TrainingScores
from lightning_tpauc.algorithms.baselines import CrossEntropy, FullBatch
from lightning_tpauc.algorithms.pauci import PAUCI, RecursiveAlgorithm
from lightning_tpauc.algorithms.sonx import SONX
from lightning_tpauc.algorithms.sota import SOTA, SOTAs
from lightning_tpauc.algorithms.staco import STACO

__all__ = (
    "AUCM",
    "PAUCI",
    "SONX",
    "SOTA",
    "STACO",
    "Algorithm",
    "CrossEntropy",
    "FullBatch",
    "PreviousScores",
    "RecursiveAlgorithm",
    "SOTAs",
    "Task",
    "TrainingScores",
)
