"""Under DDP, Lightning leaves the loaders alone whatever `use_distributed_sampler` says."""

import json

import pytest

from lightning_tpauc.data.datamodule import PosNegDataModule
from tests.helpers.items import N, X, Y
from tests.helpers.recorder import Recorder, make_trainer

pytestmark = pytest.mark.ddp


class Writer(Recorder):
    """Forked processes give nothing back, so each rank writes what it was given."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_fit_end(self):
        self.write("fit")

    def on_test_end(self):
        self.write("test")

    def on_predict_end(self):
        self.write("predict")

    def predict_step(self, batch, batch_idx):
        self.eval_log.append((batch.example_id.tolist(), batch.target.tolist(), []))

    def write(self, what):
        path = self.folder / f"{what}{self.global_rank}.json"
        path.write_text(json.dumps({"train": self.train_log, "eval": self.eval_log}))


def run(folder, stage, devices, **kwargs):
    strategy = {"strategy": "ddp_fork", "devices": devices} if devices > 1 else {}
    trainer = make_trainer(max_epochs=2, **strategy, **kwargs)
    sizes = {"num_pos": 6 // devices, "num_neg": 12 // devices, "num_dual_neg": 6 // devices}
    data = PosNegDataModule(
        (X, Y), val_dataset=(X, Y), test_dataset=(X, Y), predict_dataset=(X, Y), batch_size=9, **sizes
    )
    module = Writer(folder)
    if stage == "predict":
        trainer.predict(module, data, return_predictions=False)
    else:
        getattr(trainer, stage)(module, data)
    return [json.loads((folder / f"{stage}{rank}.json").read_text()) for rank in range(devices)]


@pytest.mark.parametrize("sampler", [True, False])
def test_ranks_train_on_disjoint_parts_of_the_global_batch(tmp_path, sampler):
    (alone,) = run(tmp_path, "fit", 1)
    ranks = run(tmp_path, "fit", 2, use_distributed_sampler=sampler)
    assert len(alone["train"]) == len(ranks[0]["train"]) == len(ranks[1]["train"]) == 8
    for reference, first, second in zip(alone["train"], *(rank["train"] for rank in ranks), strict=True):
        assert first[2] + second[2] == reference[2]
        assert not set(first[2]) & set(second[2])
        assert first[4] == second[4] == [3, 6, 3]
        assert first[3] + second[3] == pytest.approx(reference[3], abs=1e-4)


def batches_seen(ranks):
    """Ids of the batches of all ranks, in the order of the data set; repeated batches are checked and left out."""
    turns = [batch for batches in zip(*(rank["eval"] for rank in ranks), strict=True) for batch in batches]
    for ids, targets, _ in turns:
        assert all((i == -1) == (t == -1) for i, t in zip(ids, targets, strict=True))
    return [ids for ids, _, _ in turns if ids[0] != -1]


@pytest.mark.parametrize("sampler", [True, False])
@pytest.mark.parametrize("stage", ["test", "predict"])
def test_ranks_evaluate_every_example_once(tmp_path, stage, sampler):
    (alone,) = run(tmp_path, stage, 1)
    ranks = run(tmp_path, stage, 2, use_distributed_sampler=sampler)
    assert len(ranks[0]["eval"]) == len(ranks[1]["eval"]) == 4
    assert batches_seen(ranks) == [ids for ids, _, _ in alone["eval"]]
    assert [i for ids in batches_seen(ranks) for i in ids] == list(range(N))
