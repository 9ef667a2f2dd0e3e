"""The command, as it is typed: through ``sys.argv``, and once as a process of its own."""

import bz2
import importlib
import logging
import math
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings

import lightning.pytorch.loggers
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, Trainer
from lightning_utilities.core.imports import RequirementCache

import lightning_tpauc
from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.__main__ import main as entry
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.cli import TPAUCCLI, main
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.models import MLP, Linear
from tests.helpers.paths import ROOT

QUICKSTART = ROOT / "configs" / "quickstart.yaml"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
#: Six steps and one validation.
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=6", *QUIET)

pytestmark = [
    pytest.mark.usefixtures("tmp_cwd"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*", "ignore:.*use of fork.*"),
]


@pytest.fixture
def command(monkeypatch, capsys):
    """Types a command line; returns what it printed to stdout and stderr, and its exit status."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lightning-tpauc", *map(str, words)])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code
            if isinstance(status, str):  # what the interpreter does with it
                print(status, file=sys.stderr)
                status = 1
        out, err = capsys.readouterr()
        return out, err, status

    return run


def cli(*words):
    """The same with the objects at hand."""
    return TPAUCCLI(list(map(str, words)))


def error_line(err):
    """What follows ``error:``."""
    return err[err.index("error: ") :].removeprefix("error: ").strip()


def test_a_method_for_probabilities_warns_of_raw_scores():
    words = ("fit", "--config", QUICKSTART, *SHORT, "--model.algorithm=PAUCI")
    with pytest.warns(
        TPAUCWarning, match=r"PAUCI is made for scores in \[0, 1\], .*`--model.score_activation sigmoid`"
    ):
        cli(*words)
    cli(*words, "--model.score_activation=sigmoid")  # a warning would be an error here


# ---------------------------------------------------------------- fit, validate, test, predict


@pytest.mark.slow
def test_quickstart_from_fit_to_predictions(command, tmp_cwd):
    out, _, status = command("fit", "--config", QUICKSTART, *SHORT)
    assert status == 0
    assert "STACO, TPR >= " in out
    printed = {line.split(" = ")[0].strip(): line for line in out.splitlines() if " = " in line}
    assert 0 < float(printed["val/tpauc"].split(" = ")[1]) <= 1
    assert "best val/tpauc" in printed
    (test,) = [line.removeprefix("Test it with: ") for line in out.splitlines() if line.startswith("Test it with: ")]
    name, *words = test.split()
    assert name == "lightning-tpauc"

    out, _, status = command(*words, *QUIET)
    assert status == 0
    assert "test/tpauc" in out
    for subcommand in ("validate", "predict"):
        out, _, status = command(subcommand, *words[1:], *QUIET)
        assert status == 0
    assert "--trainer.callbacks+=PredictionWriter" in out
    _, _, status = command("predict", *words[1:], *QUIET, "--trainer.callbacks+=PredictionWriter")
    assert status == 0
    (file,) = tmp_cwd.rglob("predictions.csv")
    module = TPAUCModule.load_from_checkpoint(words[-1])
    data = DigitsDataModule()
    data.setup("predict")
    inputs = torch.cat([batch.inputs for batch in data.predict_dataloader()])
    scores = [float(line.split(",")[1]) for line in file.read_text().splitlines()[1:]]
    assert torch.equal(torch.tensor(scores), module(inputs).detach().reshape(-1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ModelCheckpoint.* opens a folder")
@pytest.mark.parametrize("where", ["filename={epoch}-{val/tpauc:.3f}", "dirpath=elsewhere/deep"])
def test_how_to_test_is_said_wherever_the_checkpoint_lies(where, command, tmp_cwd):
    saver = ("=ModelCheckpoint", ".monitor=val/tpauc", ".mode=max", f".{where}")
    out, _, status = command("fit", "--config", QUICKSTART, *SHORT, *(f"--trainer.callbacks{word}" for word in saver))
    assert status == 0
    (test,) = [line.removeprefix("Test it with: ") for line in out.splitlines() if line.startswith("Test it with: ")]
    (config,) = tmp_cwd.rglob("config.yaml")
    words = shlex.split(test)
    assert (tmp_cwd / words[words.index("--config") + 1]).samefile(config)
    assert (tmp_cwd / words[words.index("--ckpt_path") + 1]).is_file()


@pytest.mark.slow
def test_the_resolved_config_is_saved_and_reproduces_the_run(command, tmp_cwd):
    command("fit", "--config", QUICKSTART, *SHORT, "--model.algorithm.alpha=0.25")
    (saved,) = tmp_cwd.rglob("config.yaml")
    config = yaml.safe_load(saved.read_text())
    algorithm = config["model"]["init_args"]["algorithm"]["init_args"]
    assert algorithm["alpha"] == 0.25
    assert algorithm["beta"] == 1.0, "defaults are written out"
    first, second = (
        cli("fit", "--config", path, *SHORT[:2], "--trainer.logger=false")
        for path in (saved, saved)  # the second one overwrites ./config.yaml
    )
    assert (tmp_cwd / "config.yaml").is_file()
    assert first.model.algorithm.alpha == 0.25
    assert torch.equal(first.trainer.callback_metrics["val/tpauc"], second.trainer.callback_metrics["val/tpauc"])


def test_the_users_own_file_is_not_overwritten(command, tmp_cwd):
    """Without a logger the resolved configuration goes to the current folder, where the user's may lie."""
    own = tmp_cwd / "config.yaml"
    own.write_text("# my notes\n" + QUICKSTART.read_text())
    before = own.read_text()
    _, err, status = command("fit", "--config", "config.yaml", *SHORT, "--trainer.logger=false")
    assert status == 0, err
    assert own.read_text() == before


def test_checkpoint_rebuilds_everything_without_arguments(command, tmp_cwd):
    command("fit", "--config", QUICKSTART, *SHORT, "--model.algorithm.gamma=300", "--model.optimizer=torch.optim.Adam",
            "--model.optimizer.lr=0.01", "--model.backbone=MLP", "--model.backbone.num_features=64",
            "--model.backbone.hidden_features=[7]")  # fmt: skip
    (path,) = tmp_cwd.rglob("*.ckpt")
    state = torch.load(path, weights_only=True)["state_dict"]
    module = TPAUCModule.load_from_checkpoint(path, weights_only=True)
    assert isinstance(module.backbone, MLP)
    assert module.algorithm.gamma == 300
    for name, weights in module.state_dict().items():
        assert torch.equal(weights, state[name])
    optimizer = module.optimizer_factory(module.parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["lr"] == 0.01


def test_full_batch_config_reaches_the_minimum(tmp_cwd):
    """The config's own steps leave no slope of the objective of all examples, taken by autograd over all pairs."""
    generator = np.random.default_rng(0)
    y = generator.permutation([1] * 40 + [-1] * 160)
    x = generator.normal(size=(200, 22)) + 0.4 * y[:, None]
    for name in ("ijcnn1.bz2", "ijcnn1.t.bz2"):
        with bz2.open(tmp_cwd / name, "wt") as file:
            for label, row in zip(y, x, strict=True):
                file.write(f"{label:+d} {' '.join(f'{k}:{v:.4f}' for k, v in enumerate(row, 1))}\n")
    run = cli(
        "fit", "--config", ROOT / "configs" / "recommended" / "ijcnn1_fullbatch.yaml", f"--data.root={tmp_cwd}", *QUIET,
        "--trainer.logger=false", "--data.val_fraction=null", "--trainer.precision=64-true",
    )  # fmt: skip
    assert run.trainer.global_step == 10
    (inputs, *_), weight = next(iter(run.datamodule.train_dataloader())), run.model.backbone.linear.weight
    assert inputs.shape == (200, 22)

    def objective(w):
        scores = inputs.double() @ w
        pos, neg = scores[:40].sort().values[:20], scores[40:].sort().values[80:]
        return (0.5 + neg[None] - pos[:, None]).clamp_min(0).square().mean()

    start = torch.zeros(22, dtype=torch.float64)
    found = weight.detach()[0].double().requires_grad_()
    loss = objective(found)
    (slope,) = torch.autograd.grad(loss, found)
    assert torch.isclose(loss, run.trainer.callback_metrics["train/loss"].double(), rtol=1e-3)
    assert loss < 0.5 * objective(start)
    assert slope.norm() < 1e-3


# ---------------------------------------------------------------- what is injected


class Rates(Callback):
    """Learning rates of the steps."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_is_injected_from_yaml(tmp_cwd):
    config = write(
        tmp_cwd / "my.yaml",
        """
model:
  class_path: lightning_tpauc.TPAUCModule
  init_args:
    backbone: {class_path: torch.nn.Linear, init_args: {in_features: 64, out_features: 1}}
    algorithm: {class_path: lightning_tpauc.algorithms.SOTAs, init_args: {min_tpr: 0.25}}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01, weight_decay: 0.002}}
    lr_scheduler:
      class_path: torch.optim.lr_scheduler.MultiStepLR
      init_args: {milestones: [2, 3], gamma: 0.5}
    lr_scheduler_interval: step
data: {class_path: lightning_tpauc.DigitsDataModule, init_args: {num_pos: 8, num_neg: 8}}
""",
    )
    run = cli(
        "fit", "--config", config, "--trainer.max_steps=5", "--trainer.logger=false", *QUIET,
        "--trainer.callbacks+=tests.cli.test_cli.Rates", "--trainer.enable_checkpointing=false",
    )  # fmt: skip
    (rates,) = [c for c in run.trainer.callbacks if isinstance(c, Rates)]
    assert rates.seen == [0.01, 0.01, 0.005, 0.0025, 0.0025]
    assert run.model.algorithm.min_tpr == 0.25
    assert isinstance(run.trainer.optimizers[0].optimizer if hasattr(run.trainer.optimizers[0], "optimizer")
                      else run.trainer.optimizers[0], torch.optim.Adam)  # fmt: skip
    assert run.trainer.optimizers[0].param_groups[0]["weight_decay"] == 0.002


def test_plateau_scheduler_of_lightning_with_its_monitor():
    run = cli(
        "fit", "--config", QUICKSTART, "--trainer.max_epochs=4", "--trainer.limit_train_batches=1", *QUIET,
        "--model.optimizer=SGD", "--model.optimizer.lr=1e-3",
        "--model.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau",
        "--model.lr_scheduler.monitor=val/auroc", "--model.lr_scheduler.mode=max", "--model.lr_scheduler.patience=0",
        "--model.lr_scheduler.threshold=10", "--model.lr_scheduler.factor=0.5",
        "--trainer.logger=false", "--trainer.num_sanity_val_steps=0",
        "--trainer.callbacks+=tests.cli.test_cli.Rates",
    )  # fmt: skip
    (rates,) = [c for c in run.trainer.callbacks if isinstance(c, Rates)]
    assert rates.seen == [1e-3, 1e-3, 5e-4, 2.5e-4]


class TwoLayers(TPAUCModule):
    """A user's own module."""

    def __init__(self, width: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def forward(self, inputs):
        return self.net(inputs)


def test_short_names_and_own_classes():
    short = cli(
        "fit", "--model=TPAUCModule", "--model.backbone", "Linear", "--model.backbone.num_features=64",
        "--model.algorithm=STACO", "--model.algorithm.max_fpr=0.25", "--data=DigitsDataModule", "--data.num_pos=8",
        "--trainer.fast_dev_run=true", *QUIET,
    )  # fmt: skip
    assert type(short.model.backbone) is Linear, "ours, not torch.nn.Linear"
    assert isinstance(short.model.algorithm, STACO)
    assert short.model.algorithm.max_fpr == 0.25
    assert short.datamodule.num_pos == 8
    own = cli(
        "fit", "--model=tests.cli.test_cli.TwoLayers", "--model.width=5", "--data=DigitsDataModule",
        "--trainer.fast_dev_run=true", *QUIET,
    )  # fmt: skip
    assert own.model.net[0].out_features == 5


class Hyper(TwoLayers):
    def __init__(self, width: int = 4, **kwargs):
        super().__init__(width, **kwargs)
        self.save_hyperparameters()


# ---------------------------------------------------------------- help


def test_version_help_and_the_whole_config(command):
    assert command("--version")[::2] == (f"lightning-tpauc {lightning_tpauc.__version__}\n", 0)
    out, _, status = command("fit", "--help")
    assert status == 0
    assert out.startswith("usage: lightning-tpauc fit [options]\n")
    assert "--trainer.max_epochs" in out
    out, _, status = command("fit", "--model.help", "TPAUCModule")
    assert status == 0
    assert "--model.score_activation {identity,sigmoid}" in out
    out, _, status = command("fit", "--data.help=lightning_tpauc.LIBSVMDataModule")
    assert status == 0
    assert "folder of the files" in out
    out, _, status = command("fit", "--config", QUICKSTART, "--print_config")
    assert status == 0
    config = yaml.safe_load(out)
    assert config["data"]["init_args"]["num_pos"] is None
    assert config["model"]["init_args"]["algorithm"]["init_args"]["gamma"] == math.inf
    assert "max_steps" in config["trainer"]


# ---------------------------------------------------------------- mistakes


def misspelt(*path, instead_of):
    """The quickstart's config, and an optimizer, with one key renamed."""
    config = yaml.safe_load(QUICKSTART.read_text())
    config["model"]["init_args"]["optimizer"] = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = place.pop(instead_of)
    return yaml.safe_dump(config)


@pytest.mark.parametrize(
    ("path", "instead_of", "line"),
    [
        (
            ("model", "init_args", "algorithm", "init_args", "max_fprr"),
            "max_fpr",
            "model.algorithm: STACO has no option 'max_fprr'; did you mean 'max_fpr'?",
        ),
        (
            ("model", "init_args", "optimiser"),
            "optimizer",
            "model: TPAUCModule has no option 'optimiser'; did you mean 'optimizer'?",
        ),
        (
            ("model", "init_args", "optimizer", "init_args", "lrr"),
            "lr",
            "model.optimizer: SGD has no option 'lrr'; did you mean 'lr'?",
        ),
        (
            ("trainer", "callbacks", 0, "init_args", "monitr"),
            "monitor",
            "trainer.callbacks: ModelCheckpoint has no option 'monitr'; did you mean 'monitor'?",
        ),
        (
            ("trainer", "max_epoch"),
            "max_epochs",
            "there is no option 'trainer.max_epoch'; did you mean 'trainer.max_epochs'",
        ),
        (
            ("model", "init_args", "algorithm", "initargs"),
            "init_args",
            "model.algorithm: beside class_path there is no option 'initargs'; did you mean 'init_args'?",
        ),
    ],
)
def test_misspelt_keys_in_a_file(command, tmp_cwd, path, instead_of, line):
    config = write(tmp_cwd / "wrong.yaml", misspelt(*path, instead_of=instead_of))
    _, err, status = command("fit", "--config", config)
    assert status == 2
    assert error_line(err).startswith(line)
    assert len(err.splitlines()) <= 3, err


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--data.num_poss=3", "data: DigitsDataModule has no option 'num_poss'; did you mean 'num_pos'?"),
        ("--data.init_args.num_poss=3", "data: DigitsDataModule has no option 'num_poss'; did you mean 'num_pos'?"),
        ("--model.algorithm.alfa=3", "model.algorithm: STACO has no option 'alfa'; did you mean 'alpha'?"),
        ("--model.alpha=3", "model: TPAUCModule has no option 'alpha'; its options are backbone, algorithm, optimizer"),
        ("--trainer.max_epoch=3", "there is no option '--trainer.max_epoch'; did you mean '--trainer.max_epochs'"),
        ("--model.algorithm=STACOO", "model.algorithm: there is no class 'STACOO'; did you mean 'STACO'?"),
        ("--model.optimizer=torch.optim.Adm", "model.optimizer: there is no class 'Adm' in torch.optim; did you mean"),
        ("--model.algorithm.alpha=big", "model.algorithm.alpha: Expected a <class 'float'>. Got value: big"),
    ],
)
def test_mistakes_on_the_command_line(command, word, line):
    _, err, status = command("fit", "--config", QUICKSTART, word)
    assert status == 2
    assert error_line(err).startswith(line)
    assert len(err.splitlines()) <= 3, err


@pytest.mark.parametrize(
    ("text", "held"), [("", "nothing"), ("# later\n", "only a comment"), ("fast", "'fast'"), ("[]", "'[]'")]
)
def test_a_file_without_options(command, tmp_cwd, text, held):
    _, err, status = command("fit", "--config", write(tmp_cwd / "empty.yaml", text))
    assert status == 2
    assert error_line(err).startswith(f"the file given as --config holds {held}; expected options by name, such as")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nowhere.ckpt", "There is no checkpoint 'nowhere.ckpt' (the current folder is"),
        ("best", "`--ckpt_path best` is the best checkpoint of a training of the same process, and this one has"),
        ("last", "There is no last checkpoint for `--ckpt_path last`: give the file's path, or"),
        ("hpc", '`.test(ckpt_path="hpc")` is set but no HPC checkpoint was found'),
        ("", "`.test()` found no path for the best weights: ''"),
    ],
)
def test_a_checkpoint_that_is_not_there(command, tmp_cwd, path, line):
    config = yaml.safe_load(QUICKSTART.read_text())
    del config["trainer"]["callbacks"]
    _, err, status = command("test", "--config", write(tmp_cwd / "c.yaml", yaml.safe_dump(config)), "--ckpt_path", path)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"lightning-tpauc: error: {line}")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trainer.devices=0"], "`Trainer(devices='0')` value is not a valid input using cpu accelerator"),
        (["--model.algorithm.min_tpr=2"], "Expected `min_tpr` to be a number in [0, 1), but got 2.0."),
        (["--data.num_neg=3000"], "One step takes 3000 negatives"),
        (
            ["--data.num_neg=3000", "--trainer.devices=2", "--trainer.strategy=ddp_fork"],
            "One step takes 6000 negatives",
        ),
    ],
    ids=["in the Trainer", "in a constructor", "in setup", "in two processes"],
)
def test_what_the_user_can_mend_is_one_line(command, words, line):
    _, err, status = command("fit", "--config", QUICKSTART, *QUIET, *words)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"lightning-tpauc: error: {line}")
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["MLFlowLogger", "WandbLogger"])
def test_a_logger_whose_package_is_missing_is_one_line(command, monkeypatch, name):
    module = importlib.import_module(getattr(lightning.pytorch.loggers, name).__module__)
    flag = "_MLFLOW_AVAILABLE" if name == "MLFlowLogger" else "_WANDB_AVAILABLE"
    monkeypatch.setattr(module, flag, RequirementCache("no-such-package>=1.0"))
    _, err, status = command("fit", "--config", QUICKSTART, *QUIET, f"--trainer.logger={name}")
    assert status == 1
    assert err.splitlines()[-1].startswith("lightning-tpauc: error: Requirement 'no-such-package>=1.0' not met.")
    assert "pip install" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken(self, *args):
        msg = "a defect"
        raise RuntimeError(msg)

    monkeypatch.setattr(STACO, "step", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["fit", "--config", str(QUICKSTART), *SHORT, "--trainer.logger=false"])


def test_an_error_of_another_kind_in_a_process_is_not_taken_for_ours(monkeypatch):
    from torch.multiprocessing.spawn import ProcessRaisedException

    from lightning_tpauc.cli.errors import own_message

    text = "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n{}\n"
    ours = ProcessRaisedException(text.format("lightning_tpauc.errors.DataError: no positives: none\nat all"), 1, 7)
    assert own_message(ours) == "no positives: none\nat all"
    handled = (
        "lightning_tpauc.errors.DataError: x\n\nDuring handling ...\n\nTraceback (most recent call last):\nKeyError: 3"
    )
    for other in ("KeyError: 'x'", handled):
        assert own_message(ProcessRaisedException(text.format(other), 1, 7)) is None


# ---------------------------------------------------------------- options beside a checkpoint


@pytest.fixture
def trained(tmp_cwd):
    """A checkpoint of the quickstart at another rectangle than its file's."""
    run = cli(
        "fit", "--config", QUICKSTART, *SHORT, "--trainer.logger=false", "--model.algorithm.min_tpr=0.3",
        "--model.algorithm.alpha=0.25", "--model.optimizer=SGD", "--model.optimizer.lr=0.1",
        "--trainer.callbacks.init_args.dirpath=saved",
        "--trainer.callbacks.init_args.filename=one",
    )  # fmt: skip
    assert run.model.algorithm.min_tpr == 0.3
    return tmp_cwd / "saved" / "one.ckpt"


DATA = ("--data=DigitsDataModule", "--data.val_fraction=0.25")
ALONE = ("--trainer.logger=false", *QUIET)


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", ["validate", "test"])
def test_options_win_over_those_of_the_checkpoint(trained, subcommand):
    """Evaluated as given, with the checkpoint's for what is not given; compared with scores that Python ranks."""
    both = ("--model.algorithm.min_tpr=0.9", "--model.algorithm.max_fpr=0.25")
    runs = {
        (0.3, 0.5): cli(subcommand, "--ckpt_path", trained, *DATA, *ALONE),
        (0.9, 0.25): cli(subcommand, f"--ckpt_path={trained}", *DATA, *ALONE, *both),
        (0.9, 0.5): cli(subcommand, *both[:1], *DATA, *ALONE, "--ckpt_path", trained),
        (0.5, 0.5): cli(subcommand, "--config", QUICKSTART, *ALONE, "--ckpt_path", trained),
    }
    module = TPAUCModule.load_from_checkpoint(trained)
    for (min_tpr, max_fpr), run in runs.items():
        stage = {"validate": "val", "test": "test"}[subcommand]
        run.datamodule.setup(subcommand)
        batches = list(getattr(run.datamodule, f"{stage}_dataloader")())
        scores = torch.cat([module(batch.inputs).detach().reshape(-1) for batch in batches])
        expected = two_way_partial_auroc(
            scores, torch.cat([batch.target for batch in batches]), min_tpr=min_tpr, max_fpr=max_fpr
        )
        logged = "val/tpauc" if subcommand == "validate" else "test/tpauc"
        assert float(run.trainer.callback_metrics[logged]) == pytest.approx(float(expected), abs=1e-6)
        assert run.model.algorithm.alpha == 0.25, "not given"


@pytest.mark.slow
def test_another_rectangle_than_the_checkpoints_is_said(trained, caplog):
    cli("test", "--ckpt_path", trained, *DATA, *ALONE)
    assert "was trained for" not in caplog.text
    cli("test", "--ckpt_path", trained, *DATA, *ALONE, "--model.algorithm.min_tpr=0.9")
    said = "The checkpoint was trained for TPR >= 0.3 and FPR <= 0.5; the algorithm that is given evaluates TPR >= 0.9"
    assert said in caplog.text


@pytest.mark.slow
def test_predict_takes_the_model_from_the_checkpoint(trained, tmp_cwd):
    config = write(tmp_cwd / "p.yaml", f"ckpt_path: {trained}\ndata: {{class_path: DigitsDataModule}}\n")
    run = cli("predict", "--config", config, *ALONE)
    assert run.model.algorithm.min_tpr == 0.3
    state = torch.load(trained, weights_only=True)["state_dict"]
    assert torch.equal(run.model.backbone.linear.weight, state["backbone.linear.weight"])


@pytest.mark.slow
def test_a_resumed_run_trains_with_the_options_that_are_given(trained):
    words = ("fit", "--config", QUICKSTART, "--ckpt_path", trained, "--trainer.max_epochs=2", *SHORT[1:])
    run = cli(*words, "--trainer.logger=false", "--model.algorithm.min_tpr=0.3", "--model.algorithm.alpha=0.125")
    assert run.trainer.global_step == 2 * run.trainer.num_training_batches
    assert run.model.algorithm.alpha == 0.125


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "The checkpoint was trained for min_tpr=0.3 and max_fpr=0.5, but the module's STACO for 0.5 and 0.5"),
        (["--model.algorithm=CrossEntropy"], "The checkpoint was trained for min_tpr=0.3"),
        (
            ["--model.algorithm.min_tpr=0.3", "--model.optimizer.lr=0.01", "--model.optimizer.momentum=0.9"],
            "A resumed run goes on with the optimizer and the schedule of its checkpoint, but `optimizer.lr` was "
            "changed from 0.1 to 0.01; `optimizer.momentum` was changed from 0.0 to 0.9. Leave",
        ),
        (
            ["--model.algorithm.min_tpr=0.3", "--model.optimizer=Adam", "--model.optimizer.lr=0.1"],
            "A resumed run goes on with the optimizer and the schedule of its checkpoint, but `optimizer.class_path` "
            "was changed from 'torch.optim.SGD' to 'torch.optim.Adam'",
        ),
        (
            ["--model.algorithm.min_tpr=0.3", "--model.lr_scheduler=StepLR", "--model.lr_scheduler.step_size=3"],
            "A resumed run goes on with the optimizer and the schedule of its checkpoint, but `lr_scheduler` was "
            "changed from None to torch.optim.lr_scheduler.StepLR",
        ),
        (["--model.algorithm.min_tpr=0.3", "--model.score_activation=sigmoid"], "The `score_activation` was changed"),
        (["--model.algorithm.min_tpr=0.3", "--model.backbone=MLP"], "The checkpoint's weights do not fit TPAUCModule"),
    ],
    ids=["rectangle", "algorithm", "rate", "optimizer", "schedule", "activation", "network"],
)
def test_what_a_resumed_run_can_not_take_is_refused(command, trained, words, line):
    fit = ("fit", "--config", QUICKSTART, "--ckpt_path", trained, "--trainer.max_epochs=2", *SHORT[1:])
    _, err, status = command(*fit, "--trainer.logger=false", *words)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"lightning-tpauc: error: {line}")
    assert "Traceback" not in err


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "The checkpoint 'bad.ckpt' is not whole: its 0 bytes end too early"),
        (b"PK\x03\x04", "The checkpoint 'bad.ckpt' is not whole: its 4 bytes end too early"),
        (None, "There is no checkpoint 'bad.ckpt'"),
    ],
)
def test_damaged_checkpoints_are_one_line(command, tmp_cwd, subcommand, content, line):
    if content is not None:
        (tmp_cwd / "bad.ckpt").write_bytes(content)
    _, err, status = command(subcommand, *DATA, *ALONE, "--ckpt_path=bad.ckpt")
    assert status == 1
    assert err.splitlines()[-1].startswith(f"lightning-tpauc: error: {line}")


def test_options_of_a_checkpoint_that_are_no_more(command, trained):
    """A class that was renamed since: what the user gives is used, and that the rest is not is said."""
    content = torch.load(trained, weights_only=True)
    content["hyper_parameters"]["_class_path"] = "gone.Module"
    torch.save(content, trained)
    with pytest.warns(TPAUCWarning, match=r"one.ckpt' are not used: model: No module named 'gone'"):
        run = cli("test", "--config", QUICKSTART, *ALONE, "--ckpt_path", trained)
    assert run.model.algorithm.min_tpr == 0.5


def test_hyperparameters_that_python_saved_are_no_options(tmp_cwd):
    module = Hyper(width=3)
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False)
    trainer.fit(module, DigitsDataModule())
    trainer.save_checkpoint("python.ckpt")
    run = cli("test", "--model=tests.cli.test_cli.Hyper", "--model.width=3", *DATA, *ALONE, "--ckpt_path=python.ckpt")
    assert torch.equal(run.model.net[0].weight, module.net[0].weight)


class Takes(TwoLayers):
    def __init__(self, width: int = 4, **kwargs):
        self.extra = kwargs.pop("extra", None)
        super().__init__(width, **kwargs)


@pytest.mark.slow
def test_arguments_of_no_signature_come_from_the_checkpoint_too(tmp_cwd):
    model = ("--model=tests.cli.test_cli.Takes", "--model.dict_kwargs.extra=3", "--model.width=5")
    cli("fit", *model, *DATA, *ALONE, "--trainer.max_steps=1")
    (path,) = tmp_cwd.rglob("*.ckpt")
    run = cli("test", *DATA, *ALONE, "--ckpt_path", path)
    assert run.model.net[0].out_features == 5
    assert run.model.extra == 3


def test_evaluating_what_nobody_trained_is_said():
    with pytest.warns(TPAUCWarning, match="No `--ckpt_path` is given: the model is evaluated as it was made"):
        cli("test", "--config", QUICKSTART, *ALONE)


def test_last_is_found_in_the_folder_of_the_saver(trained):
    trained.rename(trained.with_name("last.ckpt"))
    run = cli(
        "test", "--config", QUICKSTART, *ALONE, "--ckpt_path=last",
        "--trainer.callbacks.init_args.dirpath=saved",
    )  # fmt: skip
    state = torch.load(trained.with_name("last.ckpt"), weights_only=True)["state_dict"]
    assert torch.equal(run.model.backbone.linear.weight, state["backbone.linear.weight"])


# ---------------------------------------------------------------- environment, names, signals


@pytest.mark.slow
def test_environment_variables_are_options(command, monkeypatch, tmp_cwd):
    for name, value in {
        "CONFIG": QUICKSTART,
        "TRAINER__MAX_STEPS": 4,
        "TRAINER__LOGGER": "false",
        "TRAINER__ENABLE_PROGRESS_BAR": "false",
        "MODEL__ALGORITHM__ALPHA": 0.5,
    }.items():
        monkeypatch.setenv(f"PL_FIT__{name}", str(value))
    monkeypatch.setenv("PL_TEST__TRAINER__MAX_STEPS", "9")  # of another subcommand
    run = cli("fit")
    assert run.trainer.global_step == 4
    assert run.model.algorithm.alpha == 0.5
    assert cli("fit", "--trainer.max_steps=2").trainer.global_step == 2, "what is typed wins"
    monkeypatch.setenv("PL_FIT__TRAINER__MAX_STEP", "9")
    _, err, status = command("fit")
    assert status == 2
    assert error_line(err).startswith("there is no option '--trainer.max_step'; did you mean '--trainer.max_steps'")


@pytest.mark.parametrize("monitored", [True, False])
def test_the_short_name_of_the_plateau_schedule(monitored):
    words = (
        "--model.lr_scheduler",
        "ReduceLROnPlateau",
        "--model.lr_scheduler.mode=max",
        "--model.lr_scheduler.factor=0.5",
    )
    run = cli(
        "fit", "--config", QUICKSTART, *SHORT, "--trainer.logger=false", *words,
        *(["--model.lr_scheduler.monitor=val/auroc"] if monitored else []),
    )  # fmt: skip
    (config,) = run.trainer.lr_scheduler_configs
    assert config.scheduler.factor == 0.5
    assert getattr(config.scheduler, "monitor", "val/tpauc") == ("val/auroc" if monitored else "val/tpauc")


OWN = """
import pathlib, torch
from lightning.pytorch import Callback, Trainer
from lightning_tpauc.models import Linear

class Mine(Linear):
    pass

class Say(Callback):
    def on_train_batch_end(self, trainer, *args):
        pathlib.Path(f"started{trainer.global_rank}").touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_the_console_script_finds_own_classes_and_ends_as_signals_ask(tmp_cwd, tmp_path_factory, ranks):
    """Both of its kind: a process that Python starts from another folder than the current one."""
    (tmp_cwd / "own.py").write_text(OWN)
    script = tmp_path_factory.mktemp("bin") / "lightning-tpauc"
    script.write_text("from lightning_tpauc.__main__ import main\nmain()\n")
    words = [
        "fit", "--config", str(QUICKSTART), "--trainer.max_epochs=100000", "--model.backbone=own.Mine",
        "--trainer.callbacks+=own.Say", "--trainer.logger=false", *QUIET,
    ]  # fmt: skip
    if ranks == 2:
        words += ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.num_pos=8", "--data.num_neg=8"]
    # a child that outlives its parent would keep a pipe open
    with (tmp_cwd / "err.txt").open("w") as err:
        run = subprocess.Popen([sys.executable, str(script), *words], stderr=err)
        try:
            deadline = time.monotonic() + 120
            while len(list(tmp_cwd.glob("started*"))) < ranks and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            run.terminate()
            status = run.wait(60)
        finally:
            run.kill()
    said = (tmp_cwd / "err.txt").read_text()
    assert status == 128 + signal.SIGTERM, said
    assert "Traceback" not in said


class Interrupt(Callback):
    def on_train_batch_end(self, *args):
        raise KeyboardInterrupt


def test_an_interrupt_ends_with_its_status(command):
    before = signal.getsignal(signal.SIGINT)
    try:
        words = ("--trainer.logger=false", "--trainer.callbacks+=tests.cli.test_cli.Interrupt")
        _, err, status = command("fit", "--config", QUICKSTART, *SHORT, *words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 128 + signal.SIGINT
    assert "Traceback" not in err


def test_version_does_not_import_torch():
    code = "import sys; sys.argv = ['x', '--version']; from lightning_tpauc.__main__ import main; main()"
    code += "; print(sorted({'torch', 'lightning', 'jsonargparse'} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"lightning-tpauc {lightning_tpauc.__version__}\n[]\n"


@pytest.mark.parametrize("words", [["fit", "--help"], ["--help"], ["fit", "--model.algorithm.help=STACO"]])
def test_help_says_that_it_is_loading(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["lightning-tpauc", *words])
    with pytest.raises(SystemExit) as stop:
        entry()
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    assert err == "Loading PyTorch and Lightning ...\n"
    if words[0] == "fit":
        assert "min_tpr" in out


# ---------------------------------------------------------------- noise


@pytest.mark.slow
def test_nothing_but_results_greets_a_newcomer(tmp_cwd):
    """A process of its own, since warnings and log handlers of the suite are not those of the command."""
    run = subprocess.run(
        [sys.executable, "-m", "lightning_tpauc", "fit", "--config", str(QUICKSTART)],
        capture_output=True, text=True, check=False, cwd=tmp_cwd,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "val/tpauc = " in run.stdout
    allowed = (
        "GPU available",
        "TPU available",
        "`Trainer.fit` stopped",
        "The model holds the weights that",
    )
    said = [line for line in run.stderr.splitlines() if line and not line.startswith(allowed)]
    # Lightning's summary of the model, which is a picture where rich is installed
    summary = re.compile(r" +\| Name |\d+ +\| |-+$|[\d.]+ +(Trainable|Non-trainable|Total|Modules) ")
    assert [line for line in said if not summary.match(line)] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", ["int, float", "float, int"])
def test_a_number_of_batches_is_no_share(first):
    """`typing` keeps the order of whichever annotation of a process comes first, also of another package's."""
    code = f"""
import typing
typing.Optional[typing.Union[{first}]]
from lightning_tpauc.cli import TPAUCCLI
for word, flag in (("1", "limit_train_batches"), ("1.0", "limit_val_batches"), ("2", "val_check_interval")):
    config = TPAUCCLI(["--config", {str(QUICKSTART)!r}, f"--trainer.{{flag}}={{word}}"], run=False).config
    print(repr(config.trainer[flag]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["1", "1.0", "2"], run.stderr


def test_filters_end_with_the_command(command):
    before = list(warnings.filters)
    command("--version")
    assert warnings.filters == before
    assert logging.getLogger("lightning.pytorch.utilities.rank_zero").filters == []
