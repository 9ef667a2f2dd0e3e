"""The example of a method of one's own runs, and says something true."""

import re
import runpy

import pytest
import torch

from tests.helpers.paths import ROOT
from tests.helpers.tolerances import assert_close

EXAMPLE = ROOT / "examples" / "custom_algorithm.py"


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*")
def test_training_improves_what_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    before, after = map(float, re.search(r"([\d.]+) before, ([\d.]+) after training", capsys.readouterr().out).groups())
    assert after > before + 0.1


def test_its_state_follows_the_base_class():
    example = runpy.run_path(str(EXAMPLE))
    algorithm = example["QuantileHinge"](max_fpr=0.3, rate=0.2)
    algorithm.setup(4, dtype=torch.float64)
    neg = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    for _ in range(200):
        algorithm(torch.zeros(1), neg, index=torch.tensor([0]))
    assert_close(algorithm.threshold, 0.7)
    assert set(algorithm.state_dict()) == {"num_positives", "threshold"}


def test_it_stays_short():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 40
