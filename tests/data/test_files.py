"""Downloads, without a network: urllib reads ``file://`` addresses and those of a server on this machine."""

import hashlib

import pytest

from lightning_tpauc.data import source_files as files
from lightning_tpauc.data.source_files import SOURCES, require_file
from lightning_tpauc.errors import DataError

CONTENT = b"+1 1:0.5\n-1 1:0.25\n" * 100


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Puts one file into the table of sources; returns where it belongs."""

    def put(sha256, url=None):
        origin = tmp_path / "origin"
        origin.write_bytes(CONTENT)
        monkeypatch.setattr(files, "SOURCES", {"data.txt": (url or origin.as_uri(), sha256)})
        return tmp_path / "new" / "folder" / "data.txt"

    return put


@pytest.mark.parametrize("sha256", [hashlib.sha256(CONTENT).hexdigest(), None], ids=["hash", "no hash"])
def test_fetches_a_file_into_a_new_folder(offer, sha256, capfd):
    path = offer(sha256)
    require_file(path, download=True)
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["data.txt"]
    assert "100%" in capfd.readouterr().err


def test_another_file_is_thrown_away(offer):
    path = offer("0" * 64)
    message = rf"data.txt could not be downloaded: .*{'0' * 64}.*Try again, or fetch file:.* yourself"
    with pytest.raises(DataError, match=message):
        require_file(path, download=True)
    assert list(path.parent.iterdir()) == []


def test_an_unknown_file(tmp_path):
    with pytest.raises(DataError, match=r"/a9a does not exist. Set `root` \(`--data.root DIR`\) to the folder"):
        require_file(tmp_path / "a9a", download=True)


@pytest.mark.parametrize("name", [name for name, (_, sha256) in SOURCES.items() if sha256 is not None])
def test_the_hash_is_that_of_the_real_file(name, shared_data):
    found = list(shared_data.rglob(name))
    if not found:
        pytest.skip(f"needs {name} below {shared_data}")
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == SOURCES[name][1]
