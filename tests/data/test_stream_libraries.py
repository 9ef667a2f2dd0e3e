"""Streams of the libraries that users have: read like any other, and resumed to the last bit where they can be."""

import pytest
import torch

from lightning_tpauc import NegativeStream
from tests.helpers.flows import batches_of
from tests.helpers.resuming import DIM, assert_same_end
from tests.helpers.streamed import make_datamodule, run

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*")

SHARDS, PER_SHARD = 4, 30  # fewer than a run reads, so that streams end and begin again
NEGATIVES = torch.randn(SHARDS * PER_SHARD, DIM, generator=torch.Generator().manual_seed(8))


def rows_of(shards):
    for shard in shards:
        for row in NEGATIVES[shard * PER_SHARD : (shard + 1) * PER_SHARD]:
            yield {"x": row.tolist()}


class Column(torch.utils.data.IterableDataset):
    """One column of a data set of mappings."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (item["x"] for item in self.dataset)

    def set_epoch(self, epoch):
        self.dataset.set_epoch(epoch)  # without it, Hugging Face's streams begin each pass where they were resumed

    def shard(self, **which):
        return Column(self.dataset.shard(**which))

    def state_dict(self):
        return self.dataset.state_dict()

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


def torchdata():
    nodes = pytest.importorskip("torchdata.nodes")
    return nodes.Loader(nodes.IterableWrapper(NEGATIVES))


def hugging_face():
    datasets = pytest.importorskip("datasets")
    rows = datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"shards": list(range(SHARDS))})
    return rows.with_format("torch")


def web_dataset(folder):
    webdataset = pytest.importorskip("webdataset")
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as tar:
            for k in range(PER_SHARD):
                tar.write({"__key__": f"{shard}-{k}", "x.pth": NEGATIVES[shard * PER_SHARD + k]})
    shards = webdataset.WebDataset(
        str(folder / f"{{0..{SHARDS - 1}}}.tar"),
        shardshuffle=False,
        nodesplitter=webdataset.split_by_node,
        workersplitter=webdataset.split_by_worker,
    )
    return shards.decode().to_tuple("x.pth").map(lambda row: row[0])


STREAMS = {
    "torchdata": torchdata,
    "hugging face": lambda: Column(hugging_face()),
    "hugging face, sharded": lambda: NegativeStream(Column(hugging_face()), "shard"),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_a_state_brings_them_back(tmp_path, name, workers):
    make = STREAMS[name]
    straight, _ = run(tmp_path / "a", make_datamodule(make(), workers), every=3)
    run(tmp_path / "b", make_datamodule(make(), workers), 14, every=3)
    ckpt = tmp_path / "b" / "last.ckpt"
    resumed, later = run(tmp_path / "b", make_datamodule(make(), workers), ckpt=ckpt, every=3)
    assert min(later) == 13
    assert_same_end(straight, resumed)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [*STREAMS, "web dataset, which divides itself"])
def test_every_row_is_read_once_a_pass(tmp_path, name, workers):
    """20 steps of 6 negatives are one pass, 10 of each worker are its half."""
    stream = STREAMS[name]() if name in STREAMS else NegativeStream(web_dataset(tmp_path), "own")
    data = make_datamodule(stream, workers, num_neg=3, num_dual_neg=3, steps_per_epoch=20)
    data.setup("fit")
    read = torch.cat([batch.inputs[batch.num_pos :] for batch in batches_of(data)])
    order = [NEGATIVES.tolist().index(row) for row in read.tolist()]
    assert sorted(order) == list(range(len(NEGATIVES)))
