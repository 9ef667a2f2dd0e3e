"""The command ``lightning-tpauc {fit,validate,test,predict,compare} --config FILE``."""

import argparse
import ast
import contextlib
import copy
import functools
import json
import logging
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lightning_tpauc import algorithms, data, models
from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.comparison import Comparison
from lightning_tpauc.comparison.training import Run, Setup, as_list
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import ArgumentError, TPAUCError, warn_on_rank_zero
from lightning_tpauc.lightning_fixes.checkpoint_files import AtomicCheckpointIO
from lightning_tpauc.metrics.figures import ROCFigure
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.prediction import PredictionWriter
from lightning_tpauc.scoring.thresholds import DecisionThreshold
from lightning_tpauc.version import __version__

#: Imported here so that the command line finds them by their short names.
_CLASSES: tuple[type, ...] = (
    TPAUCModule,
    DecisionThreshold,
    PredictionWriter,
    ROCFigure,
    *(getattr(algorithms, name) for name in algorithms.__all__),
    *(getattr(data, name) for name in data.__all__),
    *(getattr(models, name) for name in models.__all__),
)

_DESCRIPTION = """Train a model to maximise two-way partial AUC, test it and predict with it. Classes have options of
their own, which `--NAME.help=CLASS` lists, for example --model.algorithm.help=STACO (with min_tpr and max_fpr),
--model.help=TPAUCModule, --model.backbone.help=lightning_tpauc.models.MLP and --data.help=LIBSVMDataModule;
--print_config shows all of a command line. Environment variables such as PL_FIT__TRAINER__MAX_EPOCHS=3 stand for
options, here `fit --trainer.max_epochs=3`."""


# ---------------------------------------------------------------- the parser

_PLACE = re.compile(r"Parser key \"(.+)\":|Problem with given class_path '(?:.+\.)?(\w+)':")
#: Lines of a report that say why a value has none of several types.
_NOISE = re.compile(r"Does not validate|Subtypes|Errors:|Given value|Expected a (<class 'NoneType'>|path )|$")


def explain(message: str) -> str:
    """The lines of a parser's report that matter, as one: jsonargparse also says why none of the other types fits."""
    lines = [line.strip(" -") for line in message.splitlines()]
    return ": ".join(_PLACE.sub(r"\1\2", line) for line in lines if not _NOISE.match(line))


class TPAUCArgumentParser(LightningArgumentParser):
    """Parser whose messages are one line long, and that takes ``null`` for options of classes inside of classes."""

    @override
    def parse_args(self, args: Sequence[str] | None = None, *further: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # passed on
        """Parse; nested parsers are handed values that were read already, and written again as Python does."""
        return super().parse_args(args if args is None else [_as_yaml(word) for word in args], *further, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        super().error(explain(message) if self.exit_on_error else message, ex)  # nested parsers report to this one


def _as_yaml(word: str) -> str:
    """A word whose value Python has written, such as ``--margin=None``, as YAML writes it; any other word stays."""
    option, _, value = word.partition("=")
    with contextlib.suppress(SyntaxError, ValueError, TypeError):
        return f"{option}={json.dumps(ast.literal_eval(value))}" if "None" in value else word
    return word


# ---------------------------------------------------------------- a comparison of methods


class ComparingTrainer(Trainer):
    """Lightning's Trainer, and beside it what the command's ``compare`` takes."""

    def compare(
        self,
        model: Any = None,
        datamodule: Any = None,
        folder: str = "comparison",
        methods: list[str] | None = None,
        trials: int = 1,
        seeds: int = 3,
        folds: int | None = None,
        processes: int = 1,
        others: dict[str, str] | None = None,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train several methods on the same data and say which one is ahead.

        Args:
            model: replaced by the command's.
            datamodule: replaced by the command's.
            folder: Where report.html, tables and pictures go; the same command goes on there after a kill.
            methods: Names of methods. Default: three cross-entropies, STACO, and PAUCI for one label.
            trials: Learning rates of each method, the default and others around it, chosen on validation data.
            seeds: Repetitions with other initial weights and batches. With one, no method is called ahead.
            folds: Folds of a cross-validation, each of them a repetition.
            processes: Trainings that run side by side, each in a process and a thread of its own, on CPUs.
            others: CSV files with the scores of other models for the test data, by the name of the model.
            ckpt_path: Not used: all methods start from the same untrained weights, or from the model's init_from.
            weights_only: Not used.
        """


def _setup(config: Namespace, instantiate: Callable[[Namespace], Any], data: type, seed: int) -> Setup:
    """Makes modules and data of a configuration anew, and takes its Trainer's arguments."""
    known = ArgumentParser(exit_on_error=False).add_class_arguments(data, "init", fail_untyped=False)

    def module(algorithm: Algorithm, options: Mapping[str, Any]) -> Any:
        own = copy.deepcopy(config)
        for name, value in {"algorithm": algorithm, **options}.items():
            own.model[f"init_args.{name}"] = value
        return instantiate(own).model

    @functools.lru_cache(maxsize=1)  # read once for all methods
    def datamodule(run: Run) -> Any:
        own = copy.deepcopy(config)
        values: dict[str, Any] = {}
        if "init.seed" in known:
            values["seed"] = int(config.data.init_args.get("seed") or 0) + run.seed - seed
        if run.fold is not None:
            values |= {"num_folds": config.folds, "fold": run.fold, "val_fraction": None}
            if "init.num_folds" not in known:
                raise ArgumentError(f"`folds` needs data that can be cut, but {data.__name__} takes no `num_folds`.")
        for name, value in values.items():
            own.data[f"init_args.{name}"] = value
        return instantiate(own).data

    settings = {name: config[name].as_dict() for name in ("model", "data")}
    settings["model"].get("init_args", {}).pop("algorithm", None)
    trainer = dict(instantiate(copy.deepcopy(config)).trainer)
    return Setup(module, datamodule, {**trainer, "logger": False, "default_root_dir": None}, settings)


# ---------------------------------------------------------------- what is saved


class KeepGivenConfig(SaveConfigCallback):
    """Saves the resolved configuration in the run's folder, but never over a file that was given as ``--config``.

    In a training without validation, every ``ModelCheckpoint`` that monitors one saves the last epoch.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        target = Path(trainer.log_dir or ".", self.config_filename).resolve()  # log_dir is a broadcast
        self.already_saved |= target in [Path(path.absolute).resolve() for path in self.config.get("config") or []]
        super().setup(trainer, pl_module, stage)
        for saver in trainer.checkpoint_callbacks if stage == "fit" and not trainer.enable_validation else ():
            if isinstance(saver, ModelCheckpoint) and (saver.monitor or "").startswith("val/"):
                saver.monitor = None


# ---------------------------------------------------------------- the command


class TPAUCCLI(LightningCLI):
    """LightningCLI for TPAUC modules and their data modules, both given by ``class_path`` and ``init_args``."""

    #: The state of each callback, by its key, in the checkpoint that is given.
    _saved_callbacks: Mapping[str, Any] = {}

    def __init__(self, args: ArgsType = None, run: bool = True) -> None:
        usage = {name: {"usage": f"lightning-tpauc {name} [options]"} for name in self.subcommands()}
        super().__init__(
            TPAUCModule,
            PosNegDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            trainer_class=ComparingTrainer,
            seed_everything_default=0,
            auto_configure_optimizers=False,  # the module takes optimizer and scheduler itself
            save_config_callback=KeepGivenConfig,
            save_config_kwargs={"overwrite": True},  # without a logger the second run in a folder would stop
            parser_class=TPAUCArgumentParser,
            parser_kwargs=usage,
            args=args,
            run=run,
        )

    @override
    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "compare": {"model", "datamodule"}}

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        kwargs.update(prog="lightning-tpauc", version=__version__, description=_DESCRIPTION, allow_abbrev=False)
        return super().init_parser(**kwargs)

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        if args is not None and not isinstance(args, list):
            super().parse_arguments(parser, args)
            return
        words = sys.argv[1:] if args is None else list(args)
        subcommand = next((word for word in words if word in self.subcommands()), None)
        if subcommand is not None:
            prefix = f"PL_{subcommand.upper()}__"
            names = sorted(name for name in os.environ if name.startswith(prefix))
            names.sort(key=lambda name: name != f"{prefix}CONFIG")  # a file names the classes that options belong to
            given = [f"--{n.removeprefix(prefix).lower().replace('__', '.')}={os.environ[n]}" for n in names]
            at = words.index(subcommand) + 1
            words[at:at] = given
            self._take_options_of_checkpoint(subcommand, words)
        self.config = parser.parse_args(words)

    def _take_options_of_checkpoint(self, subcommand: str, words: list[str]) -> None:
        """Use the options that a checkpoint was trained with for options of the model that are not given."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--ckpt_path", nargs="?")
        path = finder.parse_known_args(words)[0].ckpt_path
        if path in (None, "null", "best", "last", "hpc") or "://" in path or Path(path).is_dir():
            return
        saved = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu", weights_only=True)
        self._saved_callbacks = saved.get("callbacks", {})
        options = saved.get("hyper_parameters", {})
        class_path = options.pop("_class_path", None)  # missing unless the command line wrote it
        options.pop("_instantiator", None)
        if class_path is None:
            return
        try:
            model = {"class_path": class_path, "dict_kwargs": options}
            self._subcommand_parsers[subcommand].set_defaults({"model": model})
        except Exception as error:  # of whatever class the checkpoint names
            warn_on_rank_zero(f"The options in the checkpoint {path!r} are not used: {error}")

    @override
    def _parse_ckpt_path(self) -> None:
        """Nothing is left to do: Lightning would put the checkpoint's options in place of those that are given."""

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand not in ("fit", "compare") and kwargs.get("ckpt_path") is None and not SLURMEnvironment.detect():
            warn_on_rank_zero("No `--ckpt_path` is given: the model is untrained, unless its class loads weights.")
        return kwargs

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer, which saves what validates best, and remove the broadcast from its handler of SIGTERM.

        The signal arrives at any time, so that the broadcast would meet another collective of other ranks and wait
        forever. It is not needed: at every batch the loops tell all ranks that rank 0 was asked to end.
        """
        if self.subcommand not in (None, "compare"):
            given = self.config_init[self.subcommand].trainer
            callbacks = as_list(given.callbacks)
            if given.enable_checkpointing is not False and not any(isinstance(c, Checkpoint) for c in callbacks):
                kwargs["callbacks"] = [*callbacks, ModelCheckpoint(monitor="val/tpauc", mode="max")]
        trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.checkpoint_callbacks if self.subcommand == "fit" else ():
            # a resumed run saves where it saved before, as else Lightning forgets which file was the best
            folder = self._saved_callbacks.get(callback.state_key, {}).get("dirpath")
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None and folder and Path(folder).is_dir():
                callback.dirpath = folder
        connector, launcher = trainer._signal_connector, trainer.strategy.launcher

        def note(signum: int, _: Any) -> None:
            if not connector.received_sigterm and launcher is not None:
                launcher.kill(signum)
            connector.received_sigterm = True

        connector._sigterm_notifier_fn = note  # type: ignore[method-assign]
        return trainer

    @override
    def before_instantiate_classes(self) -> None:
        if self.subcommand != "fit":
            # ModelCheckpoint says so about its own bookkeeping, which only training goes on with.
            warnings.filterwarnings("ignore", message="The dirpath has changed from")

    def compare(self, **_: Any) -> None:
        """Train several methods, print the table, and say where the page lies."""
        config, seed = self.config["compare"], int(self.config["compare"].get("seed_everything") or 0)
        if config.get("data") is None:
            raise ArgumentError("`compare` needs `--data`: name a data module.")
        if config.get("ckpt_path"):
            raise ArgumentError("`compare` takes no `ckpt_path`: give trained weights as `--model.init_from`.")
        options = {name: config.get(name) for name in ("methods", "trials", "seeds", "folds", "processes")}
        options |= {"others": config.get("others") or {}, "first_seed": seed}
        options["rectangles"] = config.model.init_args.get("rectangles") or ()
        rectangle = self.model.algorithm.min_tpr, self.model.algorithm.max_fpr
        setup = _setup(config, self._parser("compare").instantiate, type(self.datamodule), seed)
        report = Comparison(setup, config.folder, rectangle, **options).run()
        _say(f"{report}\n\n{Path(report.folder) / 'report.html'} shows the curves, too.")

    def after_fit(self) -> None:
        """Print what the run reached, and how to test it."""
        metrics, algorithm = self.trainer.callback_metrics, self.model.algorithm
        _say(f"{type(algorithm).__name__}, TPR >= {algorithm.min_tpr:g} and FPR <= {algorithm.max_fpr:g}")
        one = self.model.trained_labels is None
        of_all = [n for n in metrics if n.startswith("val/") and (one or n.count("/") == 1 or "/tpauc/" in n)]
        of_all = [n for n in of_all if "threshold" not in n]  # the model's is said already; it may be another weights'
        if of_all:
            _say("Last validation:", *(f"  {name} = {float(metrics[name]):.4f}" for name in sorted(of_all)))
        saved = [c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.best_model_path]
        for callback in saved:
            if callback.monitor and callback.best_model_score is not None:
                score, path = float(callback.best_model_score), _relative(callback.best_model_path)
                _say(f"  best {callback.monitor} = {score:.4f} in {path}")
        saved.sort(key=lambda callback: callback.monitor != "val/tpauc")
        config = Path(self.trainer.log_dir or ".") / "config.yaml"  # where LightningCLI writes it
        if saved and config.is_file():
            paths = ["--config", _relative(config), "--ckpt_path", _relative(saved[0].best_model_path)]
            _say(f"Test it with: lightning-tpauc test {shlex.join(paths)}")

    def after_predict(self) -> None:
        """Say how to get a file, unless there is one."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]  # set at run time
        if not any(isinstance(callback, PredictionWriter) for callback in callbacks):
            _say("Nothing was written: add --trainer.callbacks+=PredictionWriter for a CSV file.")


def main(args: ArgsType = None) -> None:
    """Run the command; errors that the user can mend end it with one line instead of a traceback."""
    if str(Path.cwd()) not in sys.path:  # for classes of this folder; "" would follow jsonargparse into that of a file
        sys.path.insert(0, str(Path.cwd()))
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_is_of_use)
    # lightning 2.6.6 makes LeafSpec objects of torch's pytree in every loop; torch 2.14 deprecates the class.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated", category=FutureWarning)
    # Training batches are a function of the step, which a resumed run knows.
    warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch ended")
    try:
        TPAUCCLI(args)
    except SIGTERMException:  # Lightning's would end the process as if all were done
        sys.exit(128 + signal.SIGTERM)
    except Exception as error:
        message = _own_message(error)
        if message is None:
            raise
        sys.exit(f"lightning-tpauc: error: {message}")


def _own_message(error: BaseException | None) -> str | None:
    """What to say instead of a traceback, if the user can mend an error, or the one that it was raised from."""
    while error is not None:
        extra = isinstance(error, ModuleNotFoundError) and "pip install" in str(error)
        of_checkpoint = isinstance(error, ValueError) and "(ckpt_path=" in str(error)  # Lightning's
        if isinstance(error, (TPAUCError, MisconfigurationException)) or extra or of_checkpoint:
            return str(error)
        if isinstance(error, OSError) and error.errno and error.strerror:
            place = "" if error.filename is None else f" {str(error.filename)!r}"
            return f"Can't read or write{place}: {error.strerror} (the current folder is {str(Path.cwd())!r})."
        if isinstance(error, UnicodeDecodeError):
            return f"A file is no text in UTF-8 ({error}). A checkpoint is given as `--ckpt_path`, not as `--config`."
        error = error.__cause__
    return None


def _is_of_use(record: logging.LogRecord) -> bool:
    """False for Lightning's tips to install its makers' paid services, and for the seed, which the config holds."""
    message = record.getMessage()
    return "Tip: For seamless cloud" not in message and "Seed set to" not in message


def _relative(path: str | Path) -> str:
    """The path from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


_say = rank_zero_only(functools.partial(print, sep="\n"))
