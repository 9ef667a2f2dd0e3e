"""Reading svmlight text."""

import bz2
import gzip
import lzma
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from torch import distributed

from lightning_tpauc.data import libsvm as svmlight
from lightning_tpauc.data.libsvm import read_svmlight
from lightning_tpauc.data.source_files import default_cache_dir
from lightning_tpauc.errors import ArgumentError, DataError
from tests.helpers.ddp import run_distributed

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


def test_the_last_line_needs_no_newline(data, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 1:0.5\n\n-1 2:0.25 # why")
    read = read_svmlight(path)
    assert read.features.tolist() == [[0.5, 0.0], [0.0, 0.25]]
    assert read.labels.tolist() == [1, -1]


def test_wanted_columns_and_first_index(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 0:2 1:3\n0 1:4\n")
    assert read_svmlight(path, zero_based=True).features.tolist() == [[2, 3], [0, 4]]
    path.write_text("1 1:2\n0 2:4\n")
    assert read_svmlight(path, num_features=4).features.tolist() == [[2, 0, 0, 0], [0, 4, 0, 0]]


def test_large_files_are_parsed_once_and_mapped(file, data, monkeypatch, tmp_path):
    monkeypatch.setattr(svmlight, "CACHED_FROM_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    first = read_svmlight(file)
    check(first, data)
    assert isinstance(first.features, np.memmap)
    monkeypatch.setattr(svmlight._Blocks, "_parse", None)
    check(read_svmlight(file), data)
    assert [path.name.rsplit("-", 1)[0] for path in default_cache_dir().iterdir()] == [file.name]


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


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def claim(path):
    """A header that names far more rows than there are."""
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
        np.lib.format.write_array_header_1_0(file, header)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        claim,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no array at all"),
        lambda path: path.write_bytes(pickle.dumps([1, 2])),
        lambda path: np.save(path, np.zeros((2, 1), dtype=np.float32)),
        lambda path: flip(path, 0),
        lambda path: flip(path, 0.4),
        lambda path: flip(path, 0.97),
        lambda path: path.write_bytes(path.read_bytes() + b"0"),
    ],
    ids=["cut", "claims", "empty", "other", "pickled", "no checksum", "magic", "feature", "label", "longer"],
)
def test_a_damaged_cache_is_made_again(tmp_path, caplog, damage):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 1:3\n")
    read_svmlight(path, cache_dir=cache)
    (cached,) = cache.iterdir()
    damage(cached)
    caplog.clear()
    read = read_svmlight(path, cache_dir=cache)
    assert (read.features.tolist(), read.labels.tolist()) == ([[2], [3]], [1, 0])
    assert f"The cache {cached} is damaged and is made again" in caplog.text
    caplog.clear()
    assert read_svmlight(path, cache_dir=cache).features.tolist() == [[2], [3]]
    assert caplog.text == ""
    assert list(cache.iterdir()) == [cached]


def test_no_flipped_byte_is_loaded(tmp_path, monkeypatch, data):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("".join(lines_of(*data)))
    read_svmlight(path, cache_dir=cache)
    (cached,) = cache.iterdir()
    whole = cached.read_bytes()
    for at in np.linspace(0, len(whole) - 1, 40, dtype=int):
        cached.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        check(read_svmlight(path, cache_dir=cache), data)
        assert cached.read_bytes() == whole


def test_the_folder_of_an_earlier_version_is_replaced(tmp_path):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 1:3\n")
    read_svmlight(path, cache_dir=cache)
    (cached,) = cache.iterdir()
    cached.unlink()
    earlier = cached.with_suffix("")
    earlier.mkdir()
    np.save(earlier / "features.npy", np.full((2, 1), 9, dtype=np.float32))
    np.save(earlier / "labels.npy", np.zeros(2))
    read = read_svmlight(path, cache_dir=cache)
    assert (read.features.tolist(), read.labels.tolist()) == ([[2], [3]], [1, 0])
    assert list(cache.iterdir()) == [cached]


def test_a_cache_that_stays_damaged_is_named(tmp_path, monkeypatch):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 1:3\n")
    monkeypatch.setattr(svmlight, "add_checksum", lambda file: None)
    with pytest.raises(
        DataError, match=rf"data.txt can't be read back from {cache}/data.txt-.*Set another `cache_dir`"
    ):
        read_svmlight(path, cache_dir=cache)


@pytest.mark.ddp
def test_processes_may_write_one_cache_at_once(tmp_path, data):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("".join(lines_of(*data)))

    def read(rank, size):
        sums = []
        for i in range(5):
            distributed.barrier()
            if rank == 0 and i % 2:
                for cached in cache.glob("*.npy"):
                    flip(cached, 0.5)
            distributed.barrier()
            found = read_svmlight(path, cache_dir=cache)
            sums.append((float(found.features.sum()), float(found.labels.sum())))
        return sums

    matrix, labels = data
    expected = float(matrix.toarray().astype(np.float32).sum()), float(labels.sum())
    for sums in run_distributed(read, 2):
        assert sums == [expected] * 5
    assert len(list(cache.iterdir())) == 1


def test_a_crash_leaves_no_cache(tmp_path):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 what\n")
    with pytest.raises(DataError, match="does not parse"):
        read_svmlight(path, cache_dir=cache)
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_others_may_read_a_cache_as_the_umask_says(tmp_path):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:2\n0 1:3\n")
    mask = os.umask(0o022)
    try:
        read_svmlight(path, cache_dir=cache)
    finally:
        os.umask(mask)
    (cached,) = cache.iterdir()
    assert cached.stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
def test_memory_is_bounded(tmp_path, monkeypatch):
    """The peak while parsing into the cache stays far below the dense array of 1.3 MB."""
    path = tmp_path / "data.txt"
    row = " ".join(f"{column}:{column}" for column in range(1, 41))
    path.write_text(f"1 {row}\n0 {row}\n" * 4_000)
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", 1 << 15)
    read_svmlight(path)  # imports what the parser needs
    tracemalloc.start()
    read = read_svmlight(path, cache_dir=tmp_path / "cache")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.features.shape == (8_000, 40)
    assert read.features[-1].tolist() == list(range(1, 41))
    assert peak < 1 << 19


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:x\n", r"data.txt does not parse .*: line 1 reads '1 1:x' \(.*Lines read `label index:value"),
        ("one 1:2\n", r"does not parse"),
        ("1 1:2\n# so\n\n1 2:1 2147483649:1\n1 1:1\n", r"line 4 reads '1 2:1 2147483649:1'"),
        ("1 1:2\n1 2:1 1:1", r"line 2 reads '1 2:1 1:1' .*indices growing"),
        ("1 0:2 1:3\n", r"set `zero_based=True` if indices start at 0"),
        ("", r"data.txt has no rows"),
        ("\n\n", r"data.txt has no rows"),
        ("1 1:2\n0_1 1:1\n", r"line 2 reads '0_1 1:1' \(numbers have no underscore"),
        ("# a_b\n1 1:2 # c_d\n0 1_0:1 # e", r"line 3 reads '0 1_0:1"),
        ("1 1:2 2:1_0\n", r"line 1 reads '1 1:2 2:1_0'"),
        ("\0" * 4000, r"data.txt holds nul bytes and is no svmlight text"),
        ("1 1:2\n" + "\0" * 4000, r"data.txt holds nul bytes"),
        (
            "0 900000000:1\n",
            r"has the index 900000000 in 1 rows of 14 bytes, .* GiB .*read_svmlight\(num_features=900000000\)",
        ),
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
    with pytest.raises(DataError, match=rf"data{suffix} can't be read as a {suffix} file: .* copy or download it"):
        read_svmlight(path, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("bad", ["0 1:nan", "0 1:1 3:inf", "nan 1:1"])
def test_refuses_values_that_are_not_finite(bad, tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("1 1:2 3:1\n" * 7 + f"{bad}\n" + "0 2:1\n")
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", 32)
    with pytest.raises(DataError, match=r"data.txt has a value that is not finite in row 7 \(from 0\). Remove"):
        read_svmlight(path)


def test_names_the_line_whatever_the_blocks(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("# so\n1 1:2 3:1\n\n" * 40 + "1 1:2 3\n" + "0 2:1\n" * 40)
    for block in (20, 60, 1000):
        monkeypatch.setattr(svmlight, "_BLOCK_BYTES", block)
        with pytest.raises(DataError, match="line 121 reads '1 1:2 3'"):
            read_svmlight(path)


def test_wide_rows_are_made_dense_a_few_at_a_time(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("1 1:1 100000:2\n0 3:1\n" * 10)
    monkeypatch.setattr(svmlight, "_DENSE_BYTES", 1 << 20)
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", 1 << 10)  # of which a buffer is made, however short the file
    read_svmlight(path)
    tracemalloc.start()
    read = read_svmlight(path, cache_dir=tmp_path / "cache")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.features.shape == (20, 100_000)
    assert read.features[18, [0, 99_999]].tolist() == [1, 2]
    assert read.features.sum() == 40
    assert peak < 3 << 20  # dense, all rows take 8 MB


def test_small_text_of_large_arrays_is_cached_as_well(file, data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(svmlight, "CACHED_FROM_ARRAY_BYTES", 700 * 9 * 4)
    assert not isinstance(read_svmlight(file).features, np.memmap)
    monkeypatch.setattr(svmlight, "CACHED_FROM_ARRAY_BYTES", 700 * 9 * 4 - 1)
    read = read_svmlight(file)
    check(read, data)
    assert isinstance(read.features, np.memmap)


def test_a_full_disk_is_reported(tmp_path):
    resource = pytest.importorskip("resource")
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("1 1:1 100000:2\n0 3:1\n" * 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        with pytest.raises(ArgumentError, match=r"Can't keep the arrays of .*data.txt in .*cache \(.*Set `cache_dir`"):
            read_svmlight(path, cache_dir=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(cache.iterdir()) == []
    assert read_svmlight(path, cache_dir=cache).features.sum() == 8
    with pytest.raises(ArgumentError, match="Can't keep the arrays"):
        read_svmlight(path, cache_dir=path)


def test_comments_query_ids_and_gaps(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("# header\n+1 qid:3 2:1 9:2 # note\n\n-1\t1:1\r\n#end")
    read = read_svmlight(path)
    assert read.features.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 2], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert read.labels.tolist() == [1, -1]


def test_refuses_what_is_too_large_when_dense(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("1 300000000:1\n")
    with pytest.raises(DataError, match=r"300000000 features; dense, .* take 1.1 GiB, more than `max_gib`=1.0. Raise"):
        read_svmlight(path, max_gib=1.0)


def test_an_index_out_of_proportion_may_be_meant(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("1 30000:1\n")
    monkeypatch.setattr(svmlight, "CACHED_FROM_ARRAY_BYTES", 1000)
    with pytest.raises(DataError, match="has the index 30000 in 1 rows of 10 bytes"):
        read_svmlight(path, cache_dir=tmp_path)
    assert read_svmlight(path, cache_dir=tmp_path, num_features=30_000).features.sum() == 1
    path.write_text("1 30000:1" + " " * 3 + "\n")
    assert read_svmlight(path, cache_dir=tmp_path).features.sum() == 1


def test_refuses_a_line_without_end(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("1 1:1\n1 " + " " * 5000)
    monkeypatch.setattr(svmlight, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(svmlight, "_LONGEST_LINE", 1000)
    with pytest.raises(DataError, match="holds a line of more than 256 MiB and is no svmlight text"):
        read_svmlight(path)
    path.write_text("1 1:1" + " " * 900 + "\n-1 2:1" + " " * 900)
    assert read_svmlight(path).features.tolist() == [[1, 0], [0, 1]]


def test_comments_may_hold_underscores(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("# made_by hand\n1 1:2 # row_1\n0 1:1\n")
    assert read_svmlight(path).features.tolist() == [[2], [1]]


def test_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=rf"no file {tmp_path}/none.bz2.*`root` \(`--data.root DIR`\)"):
        read_svmlight(tmp_path / "none.bz2")
