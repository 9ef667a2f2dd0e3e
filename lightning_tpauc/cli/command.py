"""The command ``lightning-tpauc {fit,validate,test,predict,compare} --config FILE``."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Union, get_args

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lightning_tpauc import algorithms, data, models
from lightning_tpauc.cli.compare import ComparingTrainer, run_comparison
from lightning_tpauc.cli.errors import explain, options_of, own_message
from lightning_tpauc.cli.words import as_yaml, full_names, given_checkpoint, with_environment
from lightning_tpauc.comparison.training import as_list
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.lightning_fixes.checkpoint_files import AtomicCheckpointIO
from lightning_tpauc.lightning_fixes.unsupported import refuse_strategy_name
from lightning_tpauc.metrics.figures import ROCFigure
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.operating_point import DecisionThreshold
from lightning_tpauc.scoring.prediction import PredictionWriter
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
--model.help=TPAUCModule, --model.backbone.help=MLP and --data.help=LIBSVMDataModule; --print_config shows all of a
command line. Environment variables such as PL_FIT__TRAINER__MAX_EPOCHS=3 stand for options, here
`fit --trainer.max_epochs=3`."""


class TPAUCArgumentParser(LightningArgumentParser):
    """Parser whose messages are one line long, and that takes ``null`` for options of classes inside of classes."""

    @override
    def parse_args(self, args: Sequence[str] | None = None, *further: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # passed on
        """Parse; nested parsers are handed values that were read already, and written again as Python does."""
        return super().parse_args(args if args is None else [as_yaml(word) for word in args], *further, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        if self.exit_on_error:  # parsers of nested classes report to this one
            parser = getattr(ex, "subcommand_parser", None) or self
            message = explain(message, parser.get_defaults().keys(), [cls.__name__ for cls in _CLASSES])
        super().error(message, ex)


class KeepGivenConfig(SaveConfigCallback):
    """Saves the resolved configuration in the run's folder, but never over a file that was given as ``--config``.

    In a training without validation, every ``ModelCheckpoint`` that monitors one saves the last epoch.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        target = Path(trainer.log_dir or ".", self.config_filename).resolve()  # log_dir is a broadcast
        given = self.config.get("config") or []
        self.already_saved |= target in [Path(path.absolute).resolve() for path in given]
        super().setup(trainer, pl_module, stage)
        for saver in trainer.checkpoint_callbacks if stage == "fit" and not trainer.enable_validation else ():
            if isinstance(saver, ModelCheckpoint) and (saver.monitor or "").startswith("val/"):
                saver.monitor = None


class SaveBest(ModelCheckpoint):
    """Saves what has the best ``val/tpauc``; without validation data, the last epoch."""

    def __init__(self) -> None:
        super().__init__(monitor="val/tpauc", mode="max")

    @property
    @override
    def state_key(self) -> str:
        return type(self).__qualname__  # whatever it monitors


class TPAUCCLI(LightningCLI):
    """LightningCLI for TPAUC modules and their data modules, both given by ``class_path`` and ``init_args``."""

    def __init__(self, args: ArgsType = None, run: bool = True) -> None:
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
            parser_kwargs={
                "description": _DESCRIPTION,
                **{
                    name: {"usage": f"lightning-tpauc {name} [options]", "description": _DESCRIPTION}
                    for name in self.subcommands()
                },
            },
            args=args,
            run=run,
        )

    @override
    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "compare": {"model", "datamodule"}}

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        _put_int_before_float(Trainer.__init__.__annotations__)
        kwargs.update(prog="lightning-tpauc", version=__version__, allow_abbrev=False)
        return super().init_parser(**kwargs)

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        if args is None or isinstance(args, list):
            words = sys.argv[1:] if args is None else args
            subcommand = next((word for word in words if word in self.subcommands()), None)
            words = with_environment(words, subcommand, os.environ)
            if subcommand is not None:
                self._take_options_of_checkpoint(subcommand, given_checkpoint(words, subcommand))
            self.config = parser.parse_args(full_names(words))
        else:
            super().parse_arguments(parser, args)

    def _take_options_of_checkpoint(self, subcommand: str, path: str | None) -> None:
        """Use the options that a checkpoint was trained with for options of the model that are not given.

        Raises:
            TPAUCError: if the checkpoint is missing, damaged or is not known by its name.
        """
        if path == "best" or (path == "last" and subcommand != "fit"):
            msg = (
                f"`--ckpt_path {path}` is a checkpoint that a training of the same process has saved, and this one has "
                "trained nothing. Give the file's path."
            )
            raise ArgumentError(msg)
        if not path or path in ("last", "hpc") or "://" in path or Path(path).is_dir():
            return
        saved = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu", weights_only=True)
        options = saved.get("hyper_parameters", {})
        class_path = options.pop("_class_path", None)  # missing unless the command line wrote it
        if class_path is None:
            return
        options.pop("_instantiator", None)
        known = options_of(class_path)
        model = {"class_path": class_path, "init_args": {k: v for k, v in options.items() if k in known}}
        if options.keys() - set(known):  # what only the class's **kwargs take
            model["dict_kwargs"] = {k: v for k, v in options.items() if k not in known}
        parser = TPAUCArgumentParser(exit_on_error=False)
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=True)
        try:
            parser.parse_object({"model": model})
        except Exception as error:  # of whatever class the checkpoint names
            reason = explain(str(error), ["model"]).partition("\n")[0]
            rank_zero_warn(f"The options in the checkpoint {path!r} are not used: {reason}", category=TPAUCWarning)
        else:
            self._subcommand_parsers[subcommand].set_defaults({"model": model})

    @override
    def _parse_ckpt_path(self) -> None:
        """Nothing is left to do: Lightning would put the checkpoint's options in place of those that are given."""

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand not in ("fit", "compare") and kwargs.get("ckpt_path") is None and not SLURMEnvironment.detect():
            rank_zero_warn(
                "No `--ckpt_path` is given: the model is evaluated as it was made, untrained unless its class loads "
                "weights.",
                category=TPAUCWarning,
            )
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
                kwargs["callbacks"] = [*callbacks, SaveBest()]
        trainer = super().instantiate_trainer(**kwargs)
        connector, launcher = trainer._signal_connector, trainer.strategy.launcher

        def note(signum: int, _: Any) -> None:
            if not connector.received_sigterm and launcher is not None:
                launcher.kill(signum)
            connector.received_sigterm = True

        connector._sigterm_notifier_fn = note  # type: ignore[method-assign]
        return trainer

    @override
    def before_instantiate_classes(self) -> None:
        refuse_strategy_name((self.config[self.subcommand] if self.subcommand else self.config).trainer.strategy)
        if self.subcommand != "fit":
            # ModelCheckpoint says so about its own bookkeeping, which only training goes on with.
            warnings.filterwarnings("ignore", message="The dirpath has changed from")

    def compare(self, **_: Any) -> None:
        """Train several methods, print the table, and say where the page lies."""
        parser, config = self._parser("compare"), self.config["compare"]
        _say(run_comparison(config, parser.instantiate, self.model))

    def after_fit(self) -> None:
        """Print what the run reached, and how to test it."""
        metrics, algorithm, best = self.trainer.callback_metrics, self.model.algorithm, self.model.training_state.best
        _say(f"{type(algorithm).__name__}, TPR >= {algorithm.min_tpr:g} and FPR <= {algorithm.max_fpr:g}")
        one = self.model.trained_labels is None
        of_all = [n for n in metrics if n.startswith("val/") and (one or n.count("/") == 1 or "/tpauc/" in n)]
        if of_all:
            _say("Last validation:", *(f"  {name} = {float(metrics[name]):.4f}" for name in sorted(of_all)))
        if best is not None and best.weights:
            _say(f"The model holds the weights with val/tpauc = {best.value[0]:.4f}")
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
    with _without_noise(), _own_folder():
        try:
            TPAUCCLI(args)
        except SIGTERMException:  # Lightning's would end the process as if all were done
            sys.exit(128 + signal.SIGTERM)
        except SystemExit as stop:
            if isinstance(stop.__context__, KeyboardInterrupt):
                sys.exit(128 + signal.SIGINT)
            raise
        except Exception as error:
            message = own_message(error)
            if message is None:
                raise
            sys.exit(f"lightning-tpauc: error: {message}")


def _put_int_before_float(annotations: dict[str, Any]) -> None:
    """Let ``--trainer.limit_train_batches 1`` mean one batch; only ``1.0`` means all of them.

    The parser takes the first type that a value fits, and 1 fits float. Lightning's annotation has int first, but
    typing keeps one object for ``Optional[Union[int, float]]`` and ``Optional[Union[float, int]]``, in the order of
    whichever was imported first.
    """
    for name, hint in annotations.items():
        kinds = get_args(hint)
        if int in kinds and float in kinds:
            annotations[name] = Union[tuple(sorted(kinds, key=lambda kind: kind is float))]  # noqa: UP007


@contextlib.contextmanager
def _own_folder() -> Iterator[None]:
    """Let classes of the current folder be imported, as ``python -m`` does and a console script does not."""
    before, here = list(sys.path), str(Path.cwd())
    if not getattr(sys.flags, "safe_path", False) and not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Keep back what is no use to whoever runs the command; Python programs see it as ever."""
    logs = [logging.getLogger(f"lightning.{name}") for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed")]
    with warnings.catch_warnings():
        # lightning 2.6.6 makes LeafSpec objects of torch's pytree in every loop; torch 2.14 deprecates the class.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated", category=FutureWarning)
        for log in logs:
            log.addFilter(_is_of_use)
        try:
            yield
        finally:
            for log in logs:
                log.removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """False for Lightning's tips to install its makers' paid services, and for the seed, which the config holds."""
    message = record.getMessage()
    return "Tip: For seamless cloud" not in message and "Seed set to" not in message


def _relative(path: str | Path) -> str:
    """The path from here, where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(Path(path).resolve().relative_to(Path.cwd()))
    return str(path)


@rank_zero_only
def _say(*lines: str) -> None:
    for line in lines:
        print(line)  # noqa: T201
