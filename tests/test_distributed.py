"""Collectives: what is gathered on two ranks, wherever in a program that is."""

import csv

import pytest
import torch
from lightning.pytorch import Trainer

from lightning_tpauc import PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.distributed import gather_objects
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.training.guards import require_agreement
from tests.helpers.ddp import run_distributed

pytestmark = pytest.mark.ddp


def amid_an_exception(work):
    """A program that tries something, and does ``work`` when that fails, as all its ranks do."""
    try:
        raise FileNotFoundError
    except FileNotFoundError:
        return work()


def test_ranks_meet_in_an_except_block():
    def work(rank, world_size):
        def collect():
            with pytest.raises(ArgumentError):
                require_agreement(lambda: {"batch_size": rank})
            return gather_objects(rank)

        return amid_an_exception(collect)

    assert run_distributed(work, 2) == [[0, 1]] * 2


def test_a_rank_that_is_alone_gathers_its_own():
    assert run_distributed(lambda rank, _: rank and gather_objects(rank, alone=True), 2) == [0, [1]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork.*")
def test_predictions_in_an_except_block_are_of_all_ranks(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(40, 3)
    module, data = TPAUCModule(torch.nn.Linear(3, 1)), PosNegDataModule(predict_dataset=inputs)
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    writer = PredictionWriter(tmp_path / "scores.csv")
    trainer = Trainer(devices=2, strategy="ddp_fork", callbacks=[writer], **silent)
    amid_an_exception(lambda: trainer.predict(module, data, return_predictions=False))
    with (tmp_path / "scores.csv").open() as file:
        found = {int(row["example_id"]): float(row["score"]) for row in csv.DictReader(file)}
    expected = module(inputs).detach().reshape(-1).tolist()
    assert found == pytest.approx(dict(enumerate(expected)), abs=1e-6)
