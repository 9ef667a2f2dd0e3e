"""Data sets over arrays."""

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from lightning_tpauc.data.arrays import ArrayDataset
from lightning_tpauc.errors import DataError
from tests.data.items import N, X, Y
from tests.tolerances import assert_close

ROWS = np.array([7, 3, 3, 59])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64])
def test_rows_of_tensors(dtype):
    features = (10 * X).to(dtype)
    rows = ArrayDataset(features, Y).rows(ROWS)
    assert rows.dtype == dtype
    assert torch.equal(rows, features[torch.from_numpy(ROWS)])


def test_rows_of_arrays_and_memory_maps(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    for features in (X.numpy(), np.asfortranarray(X.numpy()), np.load(tmp_path / "x.npy", mmap_mode="r")):
        rows = ArrayDataset(features, Y).rows(ROWS)
        assert torch.equal(rows, X[torch.from_numpy(ROWS)])
        rows += 1  # a copy: the source stays
        assert np.array_equal(features, X.numpy())


def test_higher_dimensions_and_single_items():
    data = ArrayDataset(X.reshape(N, 2, 2), Y)
    assert data.rows(ROWS).shape == (4, 2, 2)
    features, label = data[7]
    assert torch.equal(features, X[7].reshape(2, 2))
    assert label == 1
    assert len(data) == N


@pytest.mark.parametrize("features", [X, X.numpy(), X.bfloat16()])
def test_shift_and_scale(features):
    shift, scale = np.arange(4, dtype=np.float32), np.array([1, 2, 3, 4], dtype=np.float32)
    expected = (X[torch.from_numpy(ROWS)] - torch.from_numpy(shift)) * torch.from_numpy(scale)
    kind = "half" if isinstance(features, torch.Tensor) and features.dtype == torch.bfloat16 else "float32"
    assert_close(ArrayDataset(features, Y, shift, scale).rows(ROWS), expected, kind)
    assert_close(ArrayDataset(features, Y, scale=scale).rows(ROWS)[0], X[7] * torch.from_numpy(scale), kind)


def test_a_tensor_with_gradients_is_data():
    assert not ArrayDataset(X.clone().requires_grad_(), Y).rows(ROWS).requires_grad


def test_refuses_other_lengths():
    with pytest.raises(DataError, match="59 labels for 60 rows"):
        ArrayDataset(X, Y[1:])


def test_rows_of_a_tensor_whose_memory_has_moved():
    """As it does when the data set is sent to a process that is spawned, which must not get a copy of the old place."""
    x = torch.arange(30.0).reshape(10, 3)
    data = ArrayDataset(x, torch.zeros(10))
    before = x.data_ptr()
    sent = ForkingPickler.dumps(data)
    assert x.data_ptr() != before
    x[4] = torch.tensor([7.0, 8.0, 9.0])
    for dataset in (data, ForkingPickler.loads(sent)):
        assert torch.equal(dataset.rows(np.array([4, 0])), torch.tensor([[7.0, 8.0, 9.0], [0.0, 1.0, 2.0]]))
