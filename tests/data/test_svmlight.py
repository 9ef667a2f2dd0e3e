"""Reading svmlight text."""

import bz2
import gzip
import lzma
import os

import numpy as np
import pytest
from scipy import sparse

from lightning_tpauc.data import LIBSVMDataModule, libsvm
from lightning_tpauc.errors import DataError

OPENERS = {".txt": open, ".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}


def lines_of(matrix, labels):
    """Written by hand, so that the reader meets text that its own library did not write."""
    matrix = matrix.tolil()
    for label, columns, values in zip(labels, matrix.rows, matrix.data, strict=True):
        pairs = " ".join(f"{column + 1}:{float(value)!r}" for column, value in zip(columns, values, strict=True))
        yield f"{label:+d} {pairs}\n"


def read(path, **kwargs):
    """Features and labels, 0 and 1, of the training set."""
    arguments = {"root": str(path.parent), "cache_dir": str(path.parent / "cache"), "standardize": False}
    rows = LIBSVMDataModule(train_file=path.name, **arguments, **kwargs).build_datasets(None).train
    return rows.dataset.features, rows.dataset.targets


@pytest.mark.parametrize("suffix", OPENERS)
def test_plain_and_compressed_text_is_parsed_once_and_mapped(suffix, tmp_path, monkeypatch):
    matrix = sparse.random(700, 9, density=0.4, format="csr", random_state=np.random.default_rng(0))
    rows = np.arange(700)[:, None]
    # the last column first appears near the end, and the very last row is empty
    matrix = sparse.csr_matrix(np.where(((np.arange(9) == 8) & (rows < 600)) | (rows == 699), 0, matrix.toarray()))
    labels = np.where(np.arange(700) % 7 == 0, 1, -1)
    path = tmp_path / f"data{suffix}"
    with OPENERS[suffix](path, "wt") as out:
        out.writelines(lines_of(matrix, labels))
    for parse in (libsvm._parse, None):
        monkeypatch.setattr(libsvm, "_parse", parse)
        features, targets = read(path)
        assert isinstance(features, np.memmap)
        assert features.dtype == np.float32
        assert np.array_equal(features, matrix.toarray().astype(np.float32))
        assert np.array_equal(targets, labels == 1)


def test_first_index(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 0:2 1:3\n0 1:4\n")
    assert read(path)[0].tolist() == [[2, 3], [0, 4]]


def test_the_cache_notices_another_file(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 1:2\n0 1:4\n")
    assert read(path)[0][0, 0] == 2
    status = path.stat()
    path.write_text("1 1:3\n0 1:4\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert read(path)[0][0, 0] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:x\n", r"data.txt can't be read as svmlight text: .*Lines read `label index:value"),
        ("1 1:2\n# so\n\n1 2:1 2147483649:1\n1 1:1\n", r"can't be read as svmlight text"),
        ("1 1:2\n1 2:1 1:1", r"with growing indices"),
        ("", r"data.txt, but found \[\]"),
        ("1 1:2 3:1\n0 1:nan\n", r"values that are not finite. Remove"),
        ("1 1:2 3:1\n0 1:1 3:inf\n", r"values that are not finite. Remove"),
    ],
)
def test_refuses_text(text, message, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path)


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"no " + data], ids=["cut", "other"])
def test_refuses_a_damaged_file(suffix, damage, tmp_path):
    path = tmp_path / f"data{suffix}"
    compress = {".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(damage(compress(b"1 1:2\n0 1:3\n" * 5_000)))
    with pytest.raises(DataError, match=rf"data{suffix} can't be read .* is incomplete"):
        read(path)
    assert not (tmp_path / "cache").exists()


def test_comments_query_ids_and_gaps(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("# header\n+1 qid:3 2:1 9:2 # note\n\n-1\t1:1\r\n#end")
    features, targets = read(path)
    assert features.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 2], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert targets.tolist() == [1, 0]
