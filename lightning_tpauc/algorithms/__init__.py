"""Training methods behind one calling convention."""

from lightning_tpauc.algorithms.base import Algorithm, PreviousScores, TrainingScores
from lightning_tpauc.algorithms.staco import STACO

__all__ = ("STACO", "Algorithm", "PreviousScores", "TrainingScores")
