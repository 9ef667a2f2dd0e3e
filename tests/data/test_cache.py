import os

from lightning_tpauc.data.sources.cache import default_cache_dir


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "lightning_tpauc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "lightning_tpauc"
