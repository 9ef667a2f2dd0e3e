"""Private attributes of Lightning, torch and torchmetrics that the package uses: all are listed, and all are there.

A release that renames one fails here, in words, before it fails somewhere in the middle of a run.
"""

import ast

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.core.mixins import hparams_mixin
from lightning.pytorch.strategies import ModelParallelStrategy, launchers
from lightning.pytorch.utilities import model_helpers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, _utils, dataloader
from torchmetrics import Metric

from lightning_tpauc import PosNegDataModule, TPAUCModule
from tests.helpers.paths import ROOT
from tests.helpers.problems import make_trainer


def _with_hparams(_):
    module = LightningModule()
    module._set_hparams({})
    module.save_hyperparameters({"width": 3})
    return module


def _module(trainer):
    return trainer.lightning_module


#: Whose each of them is, and what goes wrong without it.
USED = {
    "_MultiProcessingLauncher": (lambda _: launchers, "a training in processes of its own leaves no threshold"),
    "_NormBase": (lambda _: nn.modules.batchnorm, "statistics are neither averaged nor agreed on"),
    "_apply": (lambda _: Metric, "casting a model rounds the scores that its metrics hold"),
    "_buffers": (_module, "a class mixed in loses what it has under a name of ours"),
    "_combined_loader": (lambda t: t.fit_loop, "a resumed epoch starts from its first batch"),
    "_compiler_ctx": (_module, "steps of a compiled module are compiled, with wrong gradients"),
    "_current_fx_name": (_module, "what an epoch's end logs is looked for in vain"),
    "_data_fetcher": (lambda t: t.fit_loop, "validation after a killed run's last checkpoint is lost"),
    "_data_source": (lambda t: t.fit_loop, "loaders of several labels are taken for those of one"),
    "_given_hyperparameters": (
        lambda _: hparams_mixin,
        "a checkpoint of the command line needs arguments to be loaded",
    ),
    "_hparams_initial": (_with_hparams, "loggers do not see what a run was made with"),
    "_iterator": (lambda _: DataLoader(TensorDataset(torch.zeros(1))), "workers of a failed run end five seconds late"),
    "_log_hyperparams": (_module, "loggers do not see what a run was made with"),
    "_logged_outputs": (lambda t: t.fit_loop.epoch_loop.val_loop, "a validation that breaks off is never logged"),
    "_modules": (_module, "a class mixed in loses what it has under a name of ours"),
    "_monitor_candidates": (lambda _: ModelCheckpoint(), "a run saves something worse than its start"),
    "_num_ready_batches_reached": (lambda t: t.fit_loop.epoch_loop, "a resumed run counts an epoch's last batch twice"),
    "_on_before_batch_transfer": (lambda _: LightningModule, "scoring passes leave out the data module's hooks"),
    "_orig_mod": (lambda _: torch.compile(nn.Linear(1, 1)), "compiled models get mappings as they are"),
    "_parameters": (_module, "a class mixed in loses what it has under a name of ours"),
    "_prepare_subcommand_kwargs": (lambda _: LightningCLI, "`--ckpt_path last` without a file tests untrained weights"),
    "_reduce_states": (lambda _: Metric, "states that processes have joined are not merged"),
    "_restarting": (lambda t: t.fit_loop, "a run with max_steps stops an epoch early when resumed"),
    "_restricted_classmethod": (lambda _: model_helpers, "modules that are called to load stay as they are"),
    "_results": (lambda t: t, "ReduceLROnPlateau does not see what training and validation log"),
    "_save_topk_checkpoint": (lambda _: ModelCheckpoint(), "a run saves something worse than its start"),
    "_should_check_val_fx": (
        lambda t: t.fit_loop.epoch_loop,
        "validation after a killed run's last checkpoint is lost",
    ),
    "_shutdown_workers": (lambda _: dataloader._MultiProcessingDataLoaderIter, "workers of a failed run end late"),
    "_signal_connector": (lambda t: t, "several processes that are asked to end wait for each other"),
    "_sigterm_notifier_fn": (lambda t: t._signal_connector, "processes that are asked to end wait for each other"),
    "_step_supports_amp_scaling": (
        lambda _: torch.optim.SGD([torch.zeros(1, requires_grad=True)], fused=True),
        "fused optimizers under 16-mixed clip scaled gradients, and skipped steps count as taken",
    ),
    "_sync_dist": (lambda _: Metric, "metrics of ranks with uneven shares are not joined"),
    "_tensor_parallel_size": (lambda _: ModelParallelStrategy(), "tensor parallelism is not refused"),
    "_train_time_interval": (lambda _: ModelCheckpoint(), "nobody warns of a saver that never saves"),
    "_trainer": (_module, "checkpoints of weights alone are resumed from"),
    "_utils": (lambda _: torch.utils.data, "streams do not see which worker reads them"),
    "_version": (lambda _: torch.zeros(1), "optimizers that evaluate by themselves train on nothing"),
    "_worker_info": (lambda _: _utils.worker, "streams do not see which worker reads them"),
}

#: What Python gives to named tuples and bound methods, and attributes of our own that a module beside them uses.
NO_SECRET = {"_asdict", "_exit", "_fields", "_replace"}
OURS = {
    "_collected",
    "_is_squashed",
    "_num_labels",
    "_reported",
    "_score_dtype",
    "_score_row",
}


def private_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.attr
        call = isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
        if call and isinstance(node.args[1], ast.Constant):
            yield node.args[1].value
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_the_list_is_complete():
    names = set()
    for path in (ROOT / "lightning_tpauc").rglob("*.py"):
        names.update(private_names(ast.parse(path.read_text(encoding="utf-8"))))
    private = {name for name in names if name.startswith("_") and not name.startswith(("__", "_foreach_"))}
    assert private - NO_SECRET - OURS == set(USED)


def small_run(**options):
    y = torch.arange(12) % 3 == 0
    data = PosNegDataModule((torch.randn(12, 2), y.long()), num_pos=2, num_neg=2)
    trainer = make_trainer(precision="32-true", max_steps=1, max_epochs=-1, **options)
    trainer.fit(TPAUCModule(nn.Linear(2, 1)), data)
    return trainer


def test_they_are_there():
    absent = {}

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            absent.update({name: why for name, (owner, why) in USED.items() if not hasattr(owner(trainer), name)})

    small_run(callbacks=[Look()])
    assert absent == {}


@pytest.mark.parametrize("name", ["epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress"])
def test_the_keys_of_a_checkpoint_that_are_corrected_are_there(name, tmp_path):
    small_run().save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["loops"]["fit_loop"]
    counters = {"ready", "started", "processed", "completed"}
    assert set(state[name]["total"]) == set(state[name]["current"]) == counters
    assert "is_last_batch" in state[name]
    assert "_batches_that_stepped" in state["epoch_loop.state_dict"]
