"""State of the random generators that a model draws from, as in dropout: per rank, and readable by ``weights_only``."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from lightning_tpauc.distributed import gather_objects, rank

__all__ = ("gather", "scatter")


def gather() -> list[dict[str, Any]]:
    """The state of every rank, in rank order; a collective.

    While an exception is handled other ranks may not take part, so a rescue checkpoint holds this rank's state only.
    """
    return gather_objects(_own())


def scatter(states: list[dict[str, Any]]) -> None:
    """Restore this rank's state; ranks that did not exist when the state was written keep theirs."""
    if rank() >= len(states):
        return
    state = states[rank()]
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _own() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": (version, list(words), gauss),
        "numpy": (
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
