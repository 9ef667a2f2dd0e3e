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


#: Module and attribute: whose it is, and what goes wrong without it.
USED = {
    ("training.weights", "_NormBase"): (
        lambda _: nn.modules.batchnorm,
        "statistics are neither averaged nor agreed on",
    ),
    ("scoring.forward", "_orig_mod"): (
        lambda _: torch.compile(nn.Linear(1, 1)),
        "compiled models get mappings as they are",
    ),
    ("training.checkpoint", "_given_hyperparameters"): (
        lambda _: hparams_mixin,
        "a checkpoint of the command line can't be loaded without arguments",
    ),
    ("cli.command", "_checkpoint_connector"): (
        lambda t: t,
        "`test --ckpt_path last` without a file tests untrained weights",
    ),
    ("cli.command", "_parse_ckpt_path"): (
        lambda t: t._checkpoint_connector,
        "`test --ckpt_path last` without a file tests untrained weights",
    ),
    ("cli.command", "_prepare_subcommand_kwargs"): (
        lambda _: LightningCLI,
        "`test --ckpt_path last` without a file tests untrained weights",
    ),
    ("cli.command", "_signal_connector"): (lambda t: t, "several processes that are asked to end wait for each other"),
    ("cli.command", "_sigterm_notifier_fn"): (
        lambda t: t._signal_connector,
        "several processes that are asked to end wait for each other",
    ),
    ("lightning_fixes.compiled", "_compiler_ctx"): (
        lambda t: t.lightning_module,
        "steps of a compiled module are compiled, with wrong gradients",
    ),
    ("data.loader", "_iterator"): (
        lambda _: DataLoader(TensorDataset(torch.zeros(1))),
        "workers of a run that fails end five seconds late each",
    ),
    ("data.loader", "_shutdown_workers"): (
        lambda _: dataloader._MultiProcessingDataLoaderIter,
        "workers of a run that fails end five seconds late each",
    ),
    ("data.loader", "_combined_loader"): (lambda t: t.fit_loop, "a resumed epoch starts from its first batch"),
    ("data.streaming", "_utils"): (lambda _: torch.utils.data, "streams do not see which worker reads them"),
    ("data.streaming", "_worker_info"): (lambda _: _utils.worker, "streams do not see which worker reads them"),
    ("lightning_fixes.resuming", "_data_fetcher"): (
        lambda t: t.fit_loop,
        "validation after a killed run's last checkpoint is lost",
    ),
    ("lightning_fixes.resuming", "_logged_outputs"): (
        lambda t: t.fit_loop.epoch_loop.val_loop,
        "a validation that an exception breaks off is never logged",
    ),
    ("lightning_fixes.resuming", "_num_ready_batches_reached"): (
        lambda t: t.fit_loop.epoch_loop,
        "a run resumed from an epoch's last batch counts that batch twice",
    ),
    ("lightning_fixes.resuming", "_restarting"): (
        lambda t: t.fit_loop,
        "a run with max_steps stops an epoch early when resumed",
    ),
    ("lightning_fixes.resuming", "_should_check_val_fx"): (
        lambda t: t.fit_loop.epoch_loop,
        "validation after a killed run's last checkpoint is lost",
    ),
    ("metrics.base", "_apply"): (lambda _: Metric, "casting a model rounds the scores that its metrics hold"),
    ("metrics.base", "_reduce_states"): (lambda _: Metric, "states that processes have joined are not merged"),
    ("metrics.base", "_sync_dist"): (lambda _: Metric, "metrics of ranks with uneven shares are not joined"),
    ("training.checkpoint", "_hparams_initial"): (_with_hparams, "loggers do not see what a run was made with"),
    ("training.checkpoint", "_log_hyperparams"): (
        lambda t: t.lightning_module,
        "loggers do not see what a run was made with",
    ),
    ("module", "_restricted_classmethod"): (
        lambda _: model_helpers,
        "modules that are called to load stay as they are",
    ),
    ("module", "_step_supports_amp_scaling"): (
        lambda _: torch.optim.SGD([torch.zeros(1, requires_grad=True)], fused=True),
        "fused optimizers under 16-mixed clip scaled gradients",
    ),
    ("optimization.optimized_module", "_step_supports_amp_scaling"): (
        lambda _: torch.optim.SGD([torch.zeros(1, requires_grad=True)], fused=True),
        "steps of fused optimizers that a gradient scaler skips count as taken",
    ),
    ("optimization.optimized_module", "_version"): (
        lambda _: torch.zeros(1),
        "optimizers that evaluate by themselves train on nothing",
    ),
    ("training.schedules", "_results"): (
        lambda t: t,
        "ReduceLROnPlateau does not see what training and validation log",
    ),
    ("training.scores", "_combined_loader"): (
        lambda t: t.fit_loop,
        "an ordinary DataLoader is refused for a lesser reason",
    ),
    ("scoring.labelled_data", "_data_source"): (
        lambda t: t.fit_loop,
        "loaders of several labels are taken for those of one",
    ),
    ("scoring.evaluated_module", "_monitor_candidates"): (
        lambda _: ModelCheckpoint(),
        "a run saves something worse than its start",
    ),
    ("scoring.evaluated_module", "_save_topk_checkpoint"): (
        lambda _: ModelCheckpoint(),
        "a run saves something worse than its start",
    ),
    ("lightning_fixes.unsupported", "_data_source"): (
        lambda t: t.fit_loop,
        "a data module of the other package is taken for a loader, with an AttributeError of its `__str__`",
    ),
    ("distributed", "_MultiProcessingLauncher"): (
        lambda _: launchers,
        "a training in processes of its own leaves no threshold",
    ),
    ("training.checkpoint", "_trainer"): (
        lambda t: t.lightning_module,
        "a training in processes of its own leaves no threshold",
    ),
    ("lightning_fixes.unsupported", "_save_distributed_checkpoint"): (
        lambda _: ModelParallelStrategy(),
        "nobody warns of folders that are overwritten",
    ),
    ("lightning_fixes.unsupported", "_tensor_parallel_size"): (
        lambda _: ModelParallelStrategy(),
        "tensor parallelism is not refused",
    ),
    ("lightning_fixes.unsupported", "_train_time_interval"): (
        lambda _: ModelCheckpoint(),
        "nobody warns of a saver that never saves",
    ),
    ("scoring.forward", "_on_before_batch_transfer"): (
        lambda _: LightningModule,
        "scoring passes leave out the data module's hooks",
    ),
    ("lightning_fixes.checkpoint_files", "_orig_mod"): (
        lambda _: torch.compile(nn.Linear(1, 1)),
        "what does not fit is said under names that no plain model has",
    ),
}

#: Not private: what Python gives to named tuples and bound methods, and functions that torch only names so.
NO_SECRET = {"_asdict", "_exit", "_fields", "_replace"}
#: Attributes of our own classes that a module beside them uses.
OURS = {"_duties"}


def private_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.attr
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "getattr"
            and isinstance(node.args[1], ast.Constant)
        ):
            yield node.args[1].value
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_the_list_is_complete():
    found = set()
    for path in (ROOT / "lightning_tpauc").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT / "lightning_tpauc").with_suffix("").parts)
        for attribute in private_names(ast.parse(path.read_text(encoding="utf-8"))):
            private = attribute.startswith("_") and not attribute.startswith(("__", "_foreach_"))
            if private and attribute not in NO_SECRET | OURS:
                found.add((name, attribute))
    assert found == set(USED)


@pytest.fixture(scope="module")
def missing():
    """Which of them a Trainer in the middle of its training lacks."""
    absent = set()

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            absent.update(key for key, (owner, _) in USED.items() if not hasattr(owner(trainer), key[1]))

    y = torch.arange(12) % 3 == 0
    data = PosNegDataModule((torch.randn(12, 2), y.long()), num_pos=2, num_neg=2)
    make_trainer(precision="32-true", max_steps=1, max_epochs=-1, callbacks=[Look()]).fit(
        TPAUCModule(nn.Linear(2, 1)), data
    )
    return absent


@pytest.mark.parametrize("key", USED, ids=".".join)
def test_it_is_there(key, missing):
    assert key not in missing, f"without {key[1]} in this release, {USED[key][1]}"


def test_the_keys_of_a_checkpoint_that_are_corrected_are_there(tmp_path):
    y = torch.arange(12) % 3 == 0
    data = PosNegDataModule((torch.randn(12, 2), y.long()), num_pos=2, num_neg=2)
    trainer = make_trainer(precision="32-true", max_steps=1, max_epochs=-1)
    trainer.fit(TPAUCModule(nn.Linear(2, 1)), data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["loops"]["fit_loop"]
    counters = {"ready", "started", "processed", "completed"}
    for name in ("epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress"):
        assert set(state[name]["total"]) == set(state[name]["current"]) == counters
        assert "is_last_batch" in state[name]
    assert "_batches_that_stepped" in state["epoch_loop.state_dict"]
