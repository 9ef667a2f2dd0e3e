"""Several processes: gathered scores, and what DDP and FSDP2 need."""

from lightning_tpauc.distributed.collectives import (
    GatheredScores,
    Shares,
    gather_objects,
    gather_scores,
    gather_scores_of_tasks,
    gather_variable,
    handling_exception,
    rank,
    split_scores,
    world_size,
)

__all__ = (
    "GatheredScores",
    "Shares",
    "gather_objects",
    "gather_scores",
    "gather_scores_of_tasks",
    "gather_variable",
    "handling_exception",
    "rank",
    "split_scores",
    "world_size",
)
