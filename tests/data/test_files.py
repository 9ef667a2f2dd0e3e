"""Downloads, without a network: urllib reads ``file://`` addresses and those of a server on this machine."""

import hashlib
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import URLError

import pytest

from lightning_tpauc.data import source_files as files
from lightning_tpauc.data.source_files import (
    SOURCES,
    Source,
    add_checksum,
    default_cache_dir,
    download_missing,
    has_checksum,
)
from lightning_tpauc.errors import ArgumentError, DataError

CONTENT = b"+1 1:0.5\n-1 1:0.25\n" * 100


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Puts one file into the table of sources; returns where it belongs."""

    def put(sha256, url=None):
        origin = tmp_path / "origin"
        origin.write_bytes(CONTENT)
        monkeypatch.setattr(files, "SOURCES", {"data.txt": Source(url or origin.as_uri(), sha256)})
        return tmp_path / "new" / "folder" / "data.txt"

    return put


def unreachable(self, request):
    msg = "no route to host"
    raise URLError(msg)


class Failing(BaseHTTPRequestHandler):
    """Says 404, or hangs up without a word."""

    def do_GET(self):
        if self.path == "/gone":
            self.send_error(404)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = HTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("sha256", [hashlib.sha256(CONTENT).hexdigest(), None], ids=["hash", "no hash"])
def test_fetches_a_file_into_a_new_folder(offer, sha256, capfd):
    path = offer(sha256)
    download_missing(path)
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["data.txt"]
    assert "100%" in capfd.readouterr().err


def test_keeps_what_is_there(offer):
    path = offer("0" * 64)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    download_missing(path)
    assert path.read_text() == "mine"


def test_another_file_is_thrown_away(offer):
    path = offer("0" * 64)
    message = rf"file:.*/origin sent another file than expected, .*{'0' * 64}.*Try again later.*save it as {path}\.$"
    with pytest.raises(DataError, match=message):
        download_missing(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("page", ["gone", "silent"])
def test_says_how_to_get_by_without_a_server(offer, server, page):
    path = offer(None, f"{server}/{page}")
    message = rf"data.txt could not be downloaded: .*Or fetch {server}/{page} yourself and save it as {path}\.$"
    with pytest.raises(DataError, match=message) as caught:
        download_missing(path)
    assert ("HTTP Error 404" in str(caught.value)) == (page == "gone")  # a port may hold these digits, too
    assert list(path.parent.iterdir()) == []


def test_says_how_to_get_by_without_a_network(offer, monkeypatch):
    monkeypatch.setattr("urllib.request.HTTPSHandler.https_open", unreachable)
    path = offer(None, "https://example.invalid/data.txt")
    with pytest.raises(
        DataError, match=r"could not be downloaded: .*no route to host.*Try again when the network is there\. Or fetch"
    ):
        download_missing(path)


def test_a_folder_that_is_a_file(offer):
    path = offer(None)
    path.parent.parent.write_text("in the way")
    with pytest.raises(DataError, match=r"data.txt could not be downloaded: .*new"):
        download_missing(path)


def test_an_unknown_file(tmp_path):
    known = re.escape(", ".join(SOURCES))
    message = (
        rf"downloaded \({known}\), but got 'a9a', and .*/a9a does not exist. Save the file there, or correct its name"
    )
    with pytest.raises(ArgumentError, match=message):
        download_missing(tmp_path / "a9a")


def test_the_table_is_well_formed():
    for name, (url, sha256) in SOURCES.items():
        assert re.fullmatch(r"https://[\w./~-]+/" + re.escape(name), url)
        assert sha256 is None or re.fullmatch("[0-9a-f]{64}", sha256)


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.sha256 is not None])
def test_the_hash_is_that_of_the_real_file(name, shared_data):
    found = list(shared_data.rglob(name))
    if not found:
        pytest.skip(f"needs {name} below {shared_data}")
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == SOURCES[name].sha256


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "lightning_tpauc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "lightning_tpauc"


@pytest.mark.parametrize("where", [0, 3, -5, -4, -1])
def test_every_flipped_bit_changes_the_checksum(tmp_path, where):
    path = tmp_path / "some.bin"
    with path.open("wb") as file:
        file.write(b"some content")
        add_checksum(file)
    assert has_checksum(path)
    whole = bytearray(path.read_bytes())
    for bit in range(8):
        damaged = whole.copy()
        damaged[where] ^= 1 << bit
        path.write_bytes(damaged)
        assert not has_checksum(path)
    path.write_bytes(whole)
    assert has_checksum(path)


@pytest.mark.parametrize("content", [b"", b"abc", b"\0\0\0\0", b"some content"])
def test_files_without_a_checksum(tmp_path, content):
    path = tmp_path / "some.bin"
    assert not has_checksum(path)
    assert not has_checksum(tmp_path)
    path.write_bytes(content)
    assert not has_checksum(path)


def test_a_checksum_of_several_chunks(tmp_path, monkeypatch):
    path = tmp_path / "some.bin"
    with path.open("wb") as file:
        file.write(b"some content" * 10)
        add_checksum(file)
    monkeypatch.setattr(files, "_CHUNK_BYTES", 7)
    assert has_checksum(path)
