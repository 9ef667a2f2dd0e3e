"""Pure functions: tensors in, tensors out."""

from lightning_tpauc.functional.duals import ExactDuals, exact_duals
from lightning_tpauc.functional.objective import tpauc_objective
from lightning_tpauc.functional.pairwise import PairwiseTerms, pairwise_terms, weighted_excess
from lightning_tpauc.functional.rectangle import ceil_count, floor_count
from lightning_tpauc.functional.surrogates import (
    PowerForm,
    Surrogate,
    SurrogateFactory,
    get_surrogate,
    register_surrogate,
    surrogate_names,
)

__all__ = (
    "ExactDuals",
    "PairwiseTerms",
    "PowerForm",
    "Surrogate",
    "SurrogateFactory",
    "ceil_count",
    "exact_duals",
    "floor_count",
    "get_surrogate",
    "pairwise_terms",
    "register_surrogate",
    "surrogate_names",
    "tpauc_objective",
    "weighted_excess",
)
