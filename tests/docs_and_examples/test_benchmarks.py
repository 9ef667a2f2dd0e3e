"""Benchmarks keep up with the package: each can be imported and says how to run it."""

import importlib
import math
from itertools import islice

import pandas as pd
import pytest
import torch

from benchmarks import regimes
from lightning_tpauc import DampedAdam
from tests.helpers.paths import ROOT
from tests.reference.averages import polynomial_mean

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("name", NAMES)
def test_each_says_how_it_runs(name, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    assert f"benchmarks.{name}" in module.__doc__ or f"benchmarks/{name}.py" in module.__doc__
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_the_table_of_results_names_them_all():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text and f"`{name}.py`" not in text] == []


def test_the_page_of_results_shows_the_stored_trainings(capsys):
    path = ROOT / "benchmarks" / "results" / "regimes.csv.gz"
    found = regimes.chosen(regimes.read(path))
    for show in (regimes.print_tables, regimes.print_diagnostic, regimes.print_repeats):
        show(found)
    printed, page = capsys.readouterr().out.splitlines(), (ROOT / "docs" / "results.md").read_text().splitlines()
    assert [line for line in printed if line not in page] == []
    runs = pd.read_csv(path).query("method in ['cross-entropy, averaged', 'balanced, averaged']")
    runs = runs[runs.problem.str.startswith("decoys")]
    best = runs.sort_values(["val", "val_auroc"]).groupby(["problem", "seed"]).test.last().mean()
    assert f"{best:.3f}" == next(line for line in printed if "all nine" in line).split("|")[6].strip()


@pytest.mark.parametrize(
    "variant",
    [
        regimes.Variant("cross-entropy", 0.01),
        regimes.Variant("balanced", 0.03, damping=3.0),
        regimes.Variant("focal", 0.01),
        regimes.Variant("logit adjustment", 0.003, damping=3.0, ours=True),
    ],
    ids=lambda variant: variant.loss,
)
def test_a_stack_of_networks_trains_as_each_by_itself(variant):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 5, generator=generator), (torch.rand(300, generator=generator) < 0.3).long()
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    stack = regimes.Stack(net, [regimes.Variant("focal", 0.1), variant], 0.3)
    matrices, vectors = ([p for p in net.parameters() if (p.ndim > 1) == wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1 * variant.ours}, {"params": vectors}]
    optimizer = torch.optim.Adam(net.parameters()) if variant.damping == 1 else DampedAdam(groups)
    iterates = []
    for step, (uniform, balanced) in enumerate(islice(regimes.batches(y, 0), 30), 1):
        stack.step((x[uniform], y[uniform]), (x[balanced], y[balanced]), steps=50)
        rows = balanced if variant.loss == "balanced" else uniform
        scores, target = net(x[rows]).squeeze(1), y[rows].float()
        prior = math.log(0.3 / 0.7) if variant.loss == "logit adjustment" else 0.0
        weight = target / target.mean() / 2 + (1 - target) / (1 - target).mean() / 2
        weight = weight if variant.loss == "balanced" else torch.ones(len(target))
        if variant.loss == "focal":
            weight = (target - scores.sigmoid()).square()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(scores + prior, target, reduction="none")
        for group in optimizer.param_groups:
            group["lr"] = variant.rate * min(1, step / 5) ** (1 + variant.ours)
        optimizer.zero_grad()
        (weight * losses).mean().backward()
        optimizer.step()
        iterates.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    for weights, expected in ((stack.weights, iterates[-1]), (stack.average, polynomial_mean(iterates))):
        torch.testing.assert_close(
            torch.cat([w[1].detach().flatten() for w in weights]), expected, rtol=1e-4, atol=1e-5
        )
