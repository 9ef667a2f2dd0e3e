"""A training with a stream of negatives."""

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset

from lightning_tpauc import NegativeStream, PosNegDataModule, StageCallback
from tests.helpers.flows import Random
from tests.helpers.problems import make_trainer
from tests.helpers.resuming import DIM, NUM_POS, Crash, CrashError, Losses, make_module


def positives(dtype=torch.float32):
    return torch.randn(NUM_POS, DIM, generator=torch.Generator().manual_seed(3)).to(dtype) + 0.5


def make_datamodule(stream=None, workers=0, **kwargs):
    x = positives()
    val = TensorDataset(torch.cat([x[:10], -x]), torch.cat([torch.ones(10), torch.zeros(NUM_POS)]))
    stream = Random(dim=DIM) if stream is None else stream
    if not isinstance(stream, NegativeStream):
        stream = NegativeStream(stream, num_scored=40)  # of the default number a test would take a minute
    sizes = {"num_pos": 4, "num_neg": 8, "batch_size": 16, "steps_per_epoch": 8, **kwargs}
    return PosNegDataModule(x, val, negatives=stream, num_workers=workers, **sizes)


def rows(count, seed=0):
    """The first rows of the stream, from numpy alone."""
    stream = iter(Random(seed, DIM))
    return torch.stack([next(stream) for _ in range(count)])


def run(folder, data, crash=None, ckpt=None, every=None, **stages):
    module, losses = make_module(), Losses()
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=every, save_on_train_epoch_end=every is None)
    callbacks = [StageCallback(every_n_steps=5, **stages), losses, saver]
    callbacks += [Crash(crash)] if crash is not None else []
    trainer = make_trainer(precision="32-true", callbacks=callbacks, enable_checkpointing=True, max_epochs=4)
    try:
        trainer.fit(module, data, ckpt_path=ckpt)
    except CrashError:
        assert crash is not None
    return module, losses.by_step
