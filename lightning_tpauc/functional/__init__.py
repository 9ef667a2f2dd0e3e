"""Pure functions: tensors in, tensors out."""

from lightning_tpauc.functional.bootstrap import BootstrapInterval, bootstrap_interval
from lightning_tpauc.functional.calibration import Calibration, calibrated_probability, fit_calibration
from lightning_tpauc.functional.duals import ExactDuals, exact_duals
from lightning_tpauc.functional.operating_points import (
    Decisions,
    count_decisions,
    decision_threshold,
    fpr_at_min_tpr,
    precision_at_alert_rate,
    tpr_at_max_fpr,
)
from lightning_tpauc.functional.pairwise import Pairs, PairwiseTerms, TaskMasks, evaluate_pairs, pairwise_terms
from lightning_tpauc.functional.roc import roc_polyline
from lightning_tpauc.functional.staco import objective_ratio, tail_mean_loss, tpauc_objective
from lightning_tpauc.functional.surrogates import (
    PowerForm,
    Surrogate,
    SurrogateFactory,
    get_surrogate,
    register_surrogate,
    surrogate_names,
)
from lightning_tpauc.functional.tpauc import two_way_partial_auroc

__all__ = (
    "BootstrapInterval",
    "Calibration",
    "Decisions",
    "ExactDuals",
    "Pairs",
    "PairwiseTerms",
    "PowerForm",
    "Surrogate",
    "SurrogateFactory",
    "TaskMasks",
    "bootstrap_interval",
    "calibrated_probability",
    "count_decisions",
    "decision_threshold",
    "evaluate_pairs",
    "exact_duals",
    "fit_calibration",
    "fpr_at_min_tpr",
    "get_surrogate",
    "objective_ratio",
    "pairwise_terms",
    "precision_at_alert_rate",
    "register_surrogate",
    "roc_polyline",
    "surrogate_names",
    "tail_mean_loss",
    "tpauc_objective",
    "tpr_at_max_fpr",
    "two_way_partial_auroc",
)
