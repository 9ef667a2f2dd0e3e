"""Data sets over arrays."""

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from lightning_tpauc.data.examples import ArrayDataset, as_features
from lightning_tpauc.errors import DataError
from tests.helpers.items import N, X, Y
from tests.helpers.tolerances import assert_close

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


@pytest.mark.parametrize("features", [X, X.numpy(), X.bfloat16()])
def test_shift_and_scale(features):
    shift, scale = np.arange(4, dtype=np.float32), np.array([1, 2, 3, 4], dtype=np.float32)
    expected = (X[torch.from_numpy(ROWS)] - torch.from_numpy(shift)) * torch.from_numpy(scale)
    kind = "half" if isinstance(features, torch.Tensor) and features.dtype == torch.bfloat16 else "float32"
    assert_close(ArrayDataset(features, Y, shift, scale).rows(ROWS), expected, kind)
    assert_close(ArrayDataset(features, Y, scale=scale).rows(ROWS)[0], X[7] * torch.from_numpy(scale), kind)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "coo_array", "lil_matrix"])
def test_rows_of_sparse_matrices(kind):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.where(X.numpy() > 0.5, X.numpy(), 0)
    data = ArrayDataset(as_features(getattr(sparse, kind)(dense)), Y)
    assert len(data) == N
    assert torch.equal(data.rows(ROWS), torch.from_numpy(dense[ROWS]))
    shifted = ArrayDataset(getattr(sparse, kind)(dense), Y, shift=np.float32(1), scale=np.float32(2)).rows(ROWS)
    assert torch.equal(shifted, torch.from_numpy((dense[ROWS] - 1) * 2))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.longdouble, np.dtype(">f8")])
def test_floats_of_any_kind_in_one(dtype):
    x = X.numpy().astype(dtype)
    rows = ArrayDataset(x, Y, dtype=np.float32).rows(ROWS)
    assert torch.equal(rows, torch.from_numpy(x[ROWS].astype(np.float32)))
    # what is no float stays: an embedding looks up whole numbers
    assert ArrayDataset(np.arange(N), Y, dtype=np.float32).rows(ROWS).dtype == torch.int64


def test_tables_are_read_in_their_order():
    pd = pytest.importorskip("pandas")
    order = np.random.default_rng(0).permutation(N)
    table = pd.DataFrame(X.numpy(), columns=list("abcd")).iloc[order]
    table["e"] = pd.Series(Y.numpy(), index=range(N))[table.index].astype("boolean")
    data = ArrayDataset(as_features(table), pd.Series(Y.numpy().astype(int)).iloc[order])
    assert torch.equal(data.rows(ROWS)[:, :4], X.double()[torch.from_numpy(order[ROWS])])
    assert data.rows(ROWS)[:, 4].tolist() == Y[torch.from_numpy(order[ROWS])].tolist()
    assert [data[row][1] for row in range(N)] == Y[torch.from_numpy(order)].int().tolist()
    assert as_features(table["a"]).tolist() == X[torch.from_numpy(order), 0].tolist()


def test_refused_features():
    pd = pytest.importorskip("pandas")
    for x, found, remedy in (
        (pd.DataFrame({"a": [1.0], "name": ["x"]}), "no numbers in name", "Encode or drop these columns"),
        (pd.DataFrame({"a": pd.Series(["x"], dtype="category")}), "no numbers in a", "Encode"),
        (pd.DataFrame([["x"] * 22]), "no numbers in 0, 1, .*, 19 and 2 more", "Encode"),
        (pd.Series(["x"]), "no numbers in x", "Encode"),
        (np.array(["x"]), "dtype <U1", "Encode it as numbers"),
        (np.array([(1.0,)], dtype=[("a", "f4")]), "dtype", "Encode it as numbers"),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), "masked entries", "Fill them"),
        ([[1.0]], "a list", "torch.tensor"),
    ):
        with pytest.raises(DataError, match=rf"x in `val_dataset` to be a tensor.*{found}.*{remedy}"):
            as_features(x, "val_dataset")


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
