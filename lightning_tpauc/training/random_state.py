"""The random state of a process: torch's, Python's, NumPy's and that of its CUDA device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from lightning_tpauc.distributed import rank


def restore_random_states(states: list[dict[str, Any]]) -> None:
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


def own_random_state() -> dict[str, Any]:
    """This rank's random state. A rescue checkpoint holds no other, since other ranks may not take part in it."""
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
