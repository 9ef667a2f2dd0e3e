"""Data that differ in one number, name or label have other digests; copies have the same."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_tpauc.data.parts import content_digest

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(50) % 3 == 0).long()
TABLE = pd.DataFrame({"age": X[:, 0].numpy(), "ward": ["A", "B"] * 25})


class Items(Dataset):
    def __init__(self, x, noise=None):
        self.x, self.noise = x, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return {"x": self.x[k] + (0 if self.noise is None else self.noise()), "name": f"row {k}"}


def changed(values):
    """One number in the middle is another one."""
    other = values.clone() if isinstance(values, torch.Tensor) else values.copy()
    other[25, 1] += 1
    return other


PAIRS = {
    "tensors": (lambda x: (x, Y), X, changed(X)),
    "labels": (lambda y: (X, y), Y, 1 - Y),
    "arrays": (lambda x: (x.numpy(), Y.numpy()), X, changed(X)),
    "sparse": (scipy.sparse.csr_matrix, X.numpy(), changed(X).numpy()),
    "sparse tensor": (lambda x: x.to_sparse(), X, changed(X)),
    "table": (lambda t: t, TABLE, TABLE.assign(ward=["A"] * 25 + ["B"] * 25)),
    "columns": (lambda t: t, TABLE, TABLE.rename(columns={"age": "dose"})),
    "data set": (lambda x: TensorDataset(x, Y), X, changed(X)),
    "part": (lambda rows: Subset(TensorDataset(X, Y), rows), [1, 2, 3], [1, 2, 4]),
    "items": (Items, X, changed(X)),
    "items with random numbers of a seed": (lambda x: Items(x, lambda: torch.rand(())), X, changed(X)),
    "number of items": (lambda x: Items(x), X, X[:40]),
    "text": (list, ["a"] * 5000, ["a"] * 4999 + ["b"]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_seen_and_copies_are_alike(name):
    make, one, other = PAIRS[name]
    assert content_digest(make(one)) == content_digest(make(one.copy() if hasattr(one, "copy") else one))
    assert content_digest(make(one)) != content_digest(make(other))


def test_random_numbers_stay_as_they_are():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    content_digest(Items(X, lambda: torch.rand(()) + np.random.rand()))
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
