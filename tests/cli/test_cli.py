"""The command, as it is typed: through ``sys.argv``, and once as a process of its own."""

import math
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import ClassVar

import pytest
import torch
import yaml
from lightning.pytorch import Callback

import lightning_tpauc
from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.cli import TPAUCCLI, main
from lightning_tpauc.functional import two_way_partial_auroc
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


def error_lines(err):
    """What follows ``error:``."""
    return err[err.index("error: ") :].removeprefix("error: ").strip().splitlines()


# ---------------------------------------------------------------- fit, validate, test, predict


@pytest.mark.slow
def test_quickstart_from_fit_to_predictions(command, tmp_cwd):
    out, _, status = command("fit", "--config", QUICKSTART, *SHORT)
    assert status == 0
    assert "STACO, TPR >= " in out
    printed = {line.split(" = ")[0].strip(): line for line in out.splitlines() if " = " in line}
    assert 0 < float(printed["val/tpauc"].split(" = ")[1]) <= 1
    assert "best val/tpauc" in printed
    assert "val/threshold" not in printed  # of the last weights; the one that is said before is the model's
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


def test_short_names():
    short = cli(
        "fit", "--model=TPAUCModule", "--model.backbone=lightning_tpauc.models.Linear",
        "--model.backbone.num_features=64", "--model.algorithm=STACO", "--model.algorithm.max_fpr=0.25",
        "--data=DigitsDataModule", "--data.num_pos=8", "--trainer.fast_dev_run=true", *QUIET,
    )  # fmt: skip
    assert isinstance(short.model.algorithm, STACO)
    assert short.model.algorithm.max_fpr == 0.25
    assert short.datamodule.num_pos == 8


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


# ---------------------------------------------------------------- what is saved


@pytest.fixture
def plain_config(tmp_cwd):
    """The quickstart without a callback that saves, and few steps."""
    config = yaml.safe_load(QUICKSTART.read_text())
    del config["trainer"]["callbacks"]
    config["trainer"].update(max_epochs=6, enable_progress_bar=False, enable_model_summary=False)
    return write(tmp_cwd / "plain.yaml", yaml.safe_dump(config))


def named_checkpoint(out):
    """The file that the last line names, and what it holds."""
    (test,) = [line.removeprefix("Test it with: ") for line in out.splitlines() if line.startswith("Test it with: ")]
    words = shlex.split(test)
    assert words[:2] == ["lightning-tpauc", "test"]
    return words[1:], torch.load(words[words.index("--ckpt_path") + 1], weights_only=True)


class Areas(Callback):
    """``val/tpauc`` by step."""

    found: ClassVar[dict[int, float]] = {}

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.found[trainer.global_step] = float(trainer.callback_metrics["val/tpauc"])


@pytest.mark.slow
def test_without_a_saver_what_validates_best_is_saved(command, plain_config, tmp_cwd):
    Areas.found = {}
    out, _, status = command("fit", "--config", plain_config, "--trainer.callbacks=tests.cli.test_cli.Areas")
    assert status == 0
    _, checkpoint = named_checkpoint(out)
    best = max(Areas.found, key=Areas.found.__getitem__)
    assert len(Areas.found) == 6
    assert checkpoint["global_step"] == best
    assert f"best val/tpauc = {Areas.found[best]:.4f} in " in out
    assert len(list(tmp_cwd.rglob("*.ckpt"))) == 1


@pytest.mark.slow
def test_a_resumed_run_still_knows_its_best_file(command, plain_config, tmp_cwd):
    saver = [f"--trainer.callbacks{word}" for word in ("=ModelCheckpoint", ".monitor=step", ".mode=min")]
    saver.append("--trainer.callbacks.save_last=true")
    out, err, status = command("fit", "--config", plain_config, *saver, "--trainer.max_epochs=3")
    assert status == 0, err
    first = re.search(r"best step = .* in (.*)", out)[0]
    (last,) = tmp_cwd.rglob("last.ckpt")
    out, err, status = command("fit", "--config", plain_config, *saver, "--ckpt_path", last)
    assert status == 0, err
    assert first in out
    assert torch.load(*tmp_cwd.rglob("last.ckpt"), weights_only=True)["global_step"] == 30


def test_classes_of_the_current_folder_are_found_from_a_config_in_another(command, tmp_cwd):
    (tmp_cwd / "of_mine.py").write_text(
        "from lightning_tpauc import DigitsDataModule\nclass Mine(DigitsDataModule): ..."
    )
    (tmp_cwd / "conf").mkdir()
    write(
        tmp_cwd / "conf" / "a.yaml", QUICKSTART.read_text().replace("lightning_tpauc.DigitsDataModule", "of_mine.Mine")
    )
    out, err, status = command("fit", "--config", tmp_cwd / "conf" / "a.yaml", "--print_config")
    assert status == 0, err
    assert "of_mine.Mine" in out


MONITOR = [f"--trainer.callbacks{word}" for word in ("=ModelCheckpoint", ".monitor=val/tpauc", ".mode=max")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*validation.*")
@pytest.mark.parametrize("words", [[], ["--data.val_fraction=null"], ["--data.val_fraction=null", *MONITOR]])
def test_a_run_without_a_validation_is_saved_at_its_end(command, plain_config, words):
    out, _, status = command("fit", "--config", plain_config, "--trainer.max_steps=3", *words)
    assert status == 0
    words, checkpoint = named_checkpoint(out)
    assert checkpoint["global_step"] == 3
    assert "test/tpauc" in command(*words)[0]


@pytest.mark.slow
def test_a_saver_of_ones_own_is_respected(command, plain_config, tmp_cwd):
    saver = ("=ModelCheckpoint", ".dirpath=own folder", ".filename={epoch}")
    out, _, _ = command("fit", "--config", plain_config, *(f"--trainer.callbacks{word}" for word in saver))
    assert named_checkpoint(out)[1]["epoch"] == 5
    assert [path.name for path in tmp_cwd.rglob("*.ckpt")] == ["epoch=5.ckpt"]
    command("fit", "--config", plain_config, "--trainer.max_steps=1", "--trainer.enable_checkpointing=false")
    assert len(list(tmp_cwd.rglob("*.ckpt"))) == 1


# ---------------------------------------------------------------- mistakes


OPTIMIZER = "model: TPAUCModule: optimizer: Type typing.Callable[[collections.abc.Iterable], torch.optim.optimizer."
WORDS = {
    "--data.num_poss=3": "data: DigitsDataModule: Option 'num_poss' is not accepted",
    "--model.algorithm.mrgin=3": "model: TPAUCModule: algorithm: STACO: Option 'mrgin' is not accepted",
    "--model.alpha=3": "model: TPAUCModule: Option 'alpha' is not accepted",
    "--trainer.max_epoch=3": "unrecognized arguments: --trainer.max_epoch=3",
    "--model.algorithm=STACOO": "model: TPAUCModule: algorithm: Expected a dot import path string: STACOO",
    "--model.backbone=Linear": "model: TPAUCModule: backbone: Multiple subclasses with name Linear. Give the full",
    "--model.optimizer=torch.optim.Adm": OPTIMIZER,
    "--model.algorithm.alpha=big": "model: TPAUCModule: algorithm: STACO: alpha: Expected a <class 'float'>. Got value",
    "--model.gradient_clip_val=big": "model: TPAUCModule: gradient_clip_val: Expected a <class 'float'>",
}


@pytest.mark.parametrize("word", WORDS)
def test_mistakes_on_the_command_line(command, word):
    _, err, status = command("fit", "--config", QUICKSTART, word)
    assert status == 2
    (line,) = error_lines(err)
    assert line.startswith(WORDS[word])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trainer.devices=0"], "`Trainer(devices='0')` value is not a valid input using cpu accelerator"),
        (["--model.algorithm.min_tpr=2"], "Expected `min_tpr` to be a number in [0, 1), but got 2.0."),
        (["--data.num_neg=3000"], "One step takes 3000 negatives"),
        (["--config", "a.ckpt"], "A file is no text in UTF-8 ("),
        (["--ckpt_path", "nowhere.ckpt"], "There is no checkpoint 'nowhere.ckpt' (the current folder is"),
        (["--ckpt_path", "a.ckpt"], "The checkpoint 'a.ckpt' is not whole: its content can't be read"),
        (["--ckpt_path", "best"], '`.fit(ckpt_path="best")` is set but'),
        (["--trainer.default_root_dir", "file"], "Can't read or write ...: Not a directory (the current folder is "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_can_mend_is_one_line(command, tmp_cwd, words, line):
    (tmp_cwd / "a.ckpt").write_bytes(b"PK\x03\x04 a zip \xff")
    (tmp_cwd / "file").touch()
    _, err, status = command("fit", "--config", QUICKSTART, *QUIET, *words)
    assert status == 1
    said = ".*".join(map(re.escape, line.split("...")))
    assert re.match(f"lightning-tpauc: error: {said}", err.splitlines()[-1])
    assert "Traceback" not in err


# ---------------------------------------------------------------- options beside a checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of the quickstart at another rectangle than its file's."""
    folder = tmp_path_factory.mktemp("trained")
    run = cli(
        "fit", "--config", QUICKSTART, *SHORT, "--trainer.logger=false", "--model.algorithm.min_tpr=0.3",
        "--model.algorithm.alpha=0.25", "--model.optimizer=SGD", "--model.optimizer.lr=0.1",
        f"--trainer.callbacks.init_args.dirpath={folder}", "--trainer.callbacks.init_args.filename=one",
        f"--trainer.default_root_dir={folder}",
    )  # fmt: skip
    assert run.model.algorithm.min_tpr == 0.3
    return folder / "one.ckpt"


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
    assert error_lines(err) == ["unrecognized arguments: --trainer.max_step=9"]


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


def test_version_does_not_import_torch():
    code = "import sys; sys.argv = ['x', '--version']; from lightning_tpauc.__main__ import main; main()"
    code += "; print(sorted({'torch', 'lightning', 'jsonargparse'} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"lightning-tpauc {lightning_tpauc.__version__}\n[]\n"


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
        "Threshold ",
        "No guarantee for new examples.",
        "The model has the weights that",
    )
    said = [line for line in run.stderr.splitlines() if line and not line.startswith(allowed)]
    # Lightning's summary of the model, which is a picture where rich is installed
    summary = re.compile(r" +\| Name |\d+ +\| |-+$|[\d.]+ +(Trainable|Non-trainable|Total|Modules) ")
    assert [line for line in said if not summary.match(line)] == []
