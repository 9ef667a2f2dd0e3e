"""Bars while labels and files are read: on terminals alone."""

import io
import sys

import pytest

from lightning_tpauc.data.labels import find_targets
from lightning_tpauc.data.libsvm import read_svmlight


class Items(list):
    """Labels are found in the items alone."""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_bars_are_for_terminals(monkeypatch, tmp_path, stream):
    (tmp_path / "two.txt").write_text("+1 1:0.5\n-1 2:1\n")
    monkeypatch.setattr(sys, "stderr", stream())
    assert find_targets(Items([(0.0, 1), (1.0, 0)])).tolist() == [1, 0]
    assert read_svmlight(tmp_path / "two.txt").features.shape == (2, 2)
    written = sys.stderr.getvalue()
    for text in ("Reading the labels of train_dataset", "Reading two.txt"):
        assert (text in written) == (stream is Terminal)
    assert written == "" or stream is Terminal
