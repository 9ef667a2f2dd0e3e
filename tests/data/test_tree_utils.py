"""Inputs as trees of tensors."""

import numpy as np
import pytest
import torch

from lightning_tpauc.data.examples import as_tensors, cut_inputs, join_inputs, num_examples
from lightning_tpauc.errors import DataError

X = torch.arange(12.0).reshape(6, 2)
TREES = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, x[:, 0]),
    "mapping": lambda x: {"a": x, "b": {"c": x[:, 1]}},
    "nested": lambda x: {"a": (x, [x])},
}


def leaves(inputs):
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    return [leaf for part in (inputs.values() if isinstance(inputs, dict) else inputs) for leaf in leaves(part)]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_what_is_cut_can_be_joined(tree):
    whole = tree(X)
    parts = [cut_inputs(whole, slice(a, b)) for a, b in ((0, 1), (1, 1), (1, 4), (4, None))]
    assert [num_examples(part) for part in parts] == [1, 0, 3, 2]
    for joined, expected in zip(leaves(join_inputs(parts)), leaves(whole), strict=True):
        assert torch.equal(joined, expected)


def test_arrays_share_their_memory():
    array = np.zeros((2, 3))
    (first, second) = as_tensors((array, X))
    array[1, 2] = 5
    assert first[1, 2] == 5
    assert second is X


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (X, X[:, :1]),
        (X, (X,)),
        ((X,), (X, X)),
        ({"a": X}, {"b": X}),
        ({"a": X}, {"a": X, "b": X}),
        ({"a": X}, X),
        (X, X.numpy()),
        ("name", "name"),
    ],
)
def test_two_kinds_are_refused(first, second):
    with pytest.raises(DataError, match=r"of one kind, but got .* Let the stream of negatives yield"):
        join_inputs([first, second])


@pytest.mark.parametrize("block", ["word", 1.5, torch.tensor(1.0), (), {}, ["word"], {"x": None}], ids=str)
def test_refuses_blocks_without_examples(block):
    with pytest.raises(DataError, match=r"Expected a block of negatives to be a tensor.*leave out `blocks=True`"):
        num_examples(block)
