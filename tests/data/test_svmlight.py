"""Reading svmlight text."""

import bz2
import gzip
import lzma
import os

import numpy as np
import pytest
from scipy import sparse

from lightning_tpauc.data import libsvm as svmlight
from lightning_tpauc.data.libsvm import read_svmlight
from lightning_tpauc.data.source_files import default_cache_dir
from lightning_tpauc.errors import DataError

OPENERS = {".txt": open, ".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}


def lines_of(matrix, labels):
    """Written by hand, so that the reader meets text that its own library did not write."""
    matrix = matrix.tolil()
    for label, columns, values in zip(labels, matrix.rows, matrix.data, strict=True):
        pairs = " ".join(f"{column + 1}:{float(value)!r}" for column, value in zip(columns, values, strict=True))
        yield f"{label:+d} {pairs}\n"


@pytest.fixture(scope="module")
def data():
    matrix = sparse.random(700, 9, density=0.4, format="csr", random_state=np.random.default_rng(0))
    rows = np.arange(700)[:, None]
    # the last column first appears near the end, and the very last row is empty
    matrix = sparse.csr_matrix(np.where(((np.arange(9) == 8) & (rows < 600)) | (rows == 699), 0, matrix.toarray()))
    labels = np.where(np.arange(700) % 7 == 0, 1, -1)
    return matrix, labels


@pytest.fixture(params=[".txt", ".bz2", ".gz", ".xz"])
def file(request, data, tmp_path):
    path = tmp_path / f"data{request.param}"
    with OPENERS[request.param](path, "wt") as out:
        out.writelines(lines_of(*data))
    return path


def check(read, data):
    matrix, labels = data
    assert read.features.dtype == np.float32
    assert np.array_equal(read.features, matrix.toarray().astype(np.float32))
    assert np.array_equal(read.labels, labels)


def test_reads_plain_and_compressed_text(file, data):
    check(read_svmlight(file), data)


@pytest.mark.parametrize("block", [20, 500, 10_000])
def test_blocks_change_nothing(file, data, block, monkeypatch, tmp_path):
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", block)
    check(read_svmlight(file), data)
    check(read_svmlight(file, cache_dir=tmp_path / "cache"), data)


def test_wanted_columns_and_first_index(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 0:2 1:3\n0 1:4\n")
    assert read_svmlight(path, zero_based=True).features.tolist() == [[2, 3], [0, 4]]
    path.write_text("1 1:2\n0 2:4\n")
    assert read_svmlight(path, num_features=4).features.tolist() == [[2, 0, 0, 0], [0, 4, 0, 0]]


def test_the_cache_notices_another_file(tmp_path):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 1:4\n")
    assert read_svmlight(path, cache_dir=cache).features[0, 0] == 2
    status = path.stat()
    path.write_text("1 1:3\n0 1:4\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert read_svmlight(path, cache_dir=cache).features[0, 0] == 3
    assert read_svmlight(path, cache_dir=cache, num_features=2).features.shape == (2, 2)
    assert len(list(cache.iterdir())) == 3


def test_large_files_are_parsed_once_and_mapped(file, data, monkeypatch, tmp_path):
    monkeypatch.setattr(svmlight, "_CACHED_FROM_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    check(read_svmlight(file), data)
    monkeypatch.setattr(svmlight, "_parse", None)
    again = read_svmlight(file)
    check(again, data)
    assert isinstance(again.features, np.memmap)
    assert [path.name.rsplit("-", 1)[0] for path in default_cache_dir().iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:x\n", r"data.txt does not parse as svmlight text: .*Lines read `label index:value"),
        ("1 1:2\n# so\n\n1 2:1 2147483649:1\n1 1:1\n", r"does not parse"),
        ("1 1:2\n1 2:1 1:1", r"with growing indices"),
        ("1 0:2 1:3\n", r"set `zero_based=True` if they start at 0"),
        ("", r"data.txt has 0 rows of 0 features: it is empty"),
    ],
)
def test_refuses_text(text, message, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_svmlight(path)


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"no " + data], ids=["cut", "other"])
def test_refuses_a_damaged_file(suffix, damage, tmp_path):
    path = tmp_path / f"data{suffix}"
    compress = {".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(damage(compress(b"1 1:2\n0 1:3\n" * 5_000)))
    with pytest.raises(DataError, match=rf"data{suffix} can't be read: .* copy or download it"):
        read_svmlight(path, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("bad", ["0 1:nan", "0 1:1 3:inf", "nan 1:1"])
def test_refuses_values_that_are_not_finite(bad, tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("1 1:2 3:1\n" * 7 + f"{bad}\n" + "0 2:1\n")
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", 32)
    with pytest.raises(DataError, match=r"data.txt holds values that are not finite. Remove"):
        read_svmlight(path)


def test_comments_query_ids_and_gaps(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("# header\n+1 qid:3 2:1 9:2 # note\n\n-1\t1:1\r\n#end")
    read = read_svmlight(path)
    assert read.features.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 2], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert read.labels.tolist() == [1, -1]
