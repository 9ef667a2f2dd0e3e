"""Metrics over scores that are collected batch by batch and on any number of processes."""

from lightning_tpauc.metrics.objective import ExactObjective, FPRAtMinTPR, TPRAtMaxFPR
from lightning_tpauc.metrics.tpauc import TwoWayPartialAUROC

__all__ = ("ExactObjective", "FPRAtMinTPR", "TPRAtMaxFPR", "TwoWayPartialAUROC")
