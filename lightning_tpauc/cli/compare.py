"""``lightning-tpauc compare``: a comparison of the methods on what a configuration of ``fit`` describes."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import LightningDataModule, Trainer

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.comparison import Comparison
from lightning_tpauc.comparison.training import Run, Setup
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.module import TPAUCModule


class ComparingTrainer(Trainer):
    """Lightning's Trainer, and beside it what the command's ``compare`` takes."""

    def compare(
        self,
        model: Any = None,
        datamodule: Any = None,
        folder: str = "comparison",
        methods: list[str] | None = None,
        trials: int = 1,
        seeds: int = 1,
        folds: int | None = None,
        processes: int = 1,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train several methods on the same data and say which one is ahead.

        Args:
            model: replaced by the command's.
            datamodule: replaced by the command's.
            folder: Where report.html, tables and pictures go; the same command goes on there after a kill.
            methods: Names of methods. Default: cross-entropy, balanced cross-entropy, STACO, and PAUCI for one label.
            trials: Learning rates of each method, the default and others around it, chosen on validation data.
            seeds: Repetitions with other initial weights and batches.
            folds: Folds of a cross-validation, each of them a repetition.
            processes: Trainings that run side by side, each in a process and a thread of its own, on CPUs.
            ckpt_path: Not used: all methods start from the same untrained weights, or from the model's init_from.
            weights_only: Not used.
        """


def options_of(class_path: str) -> list[str]:
    """Names of the arguments that a class takes in a configuration; empty if it can't be imported.

    Example:
        >>> options_of("lightning_tpauc.models.Linear")
        ['num_features', 'bias', 'num_labels']
    """
    module, _, name = class_path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
        added = ArgumentParser(exit_on_error=False).add_class_arguments(cls, "init", fail_untyped=False)
    except (ImportError, AttributeError, TypeError, ValueError):
        return []
    return list(dict.fromkeys(key.split(".")[1] for key in added))


def _setup(config: Namespace, instantiate: Callable[[Namespace], Any], seed: int) -> Setup:
    """Makes modules and data of a configuration anew, and takes its Trainer's arguments."""

    def module(algorithm: Algorithm, options: Mapping[str, Any]) -> TPAUCModule:
        own = copy.deepcopy(config)
        for name, value in {"algorithm": algorithm, **options}.items():
            own.model[f"init_args.{name}"] = value
        made: TPAUCModule = instantiate(own).model
        return made

    @functools.lru_cache(maxsize=1)  # read once for all methods
    def datamodule(run: Run) -> LightningDataModule:
        own, known = copy.deepcopy(config), options_of(config.data.class_path)
        given = config.data.get("init_args") or {}
        values: dict[str, Any] = {"seed": int(given.get("seed") or 0) + run.seed - seed} if "seed" in known else {}
        if run.fold is not None:
            values |= {"num_folds": config.folds, "fold": run.fold, "val_fraction": None}
        if run.fold is not None and "num_folds" not in known:
            msg = f"`folds` needs data that can be cut into folds, but {config.data.class_path} takes no `num_folds`."
            raise ArgumentError(msg)
        for name, value in values.items():
            own.data[f"init_args.{name}"] = value
        made: LightningDataModule = instantiate(own).data
        return made

    settings = {name: config[name].as_dict() for name in ("model", "data")}
    settings["model"].get("init_args", {}).pop("algorithm", None)
    trainer = dict(instantiate(copy.deepcopy(config)).trainer)
    return Setup(module, datamodule, {**trainer, "logger": False, "default_root_dir": None}, settings)


def run_comparison(config: Namespace, instantiate: Callable[[Namespace], Any], model: TPAUCModule) -> str:
    """Run the comparison that the command line describes."""
    msg = ""
    if config.get("data") is None:
        msg = "`compare` needs `--data`: name a data module."
    elif config.get("ckpt_path"):
        msg = (
            "`compare` takes no `ckpt_path`: all methods start from the same weights. Give trained ones as "
            "`--model.init_from`."
        )
    elif "algorithm" not in options_of(config.model.class_path):
        msg = f"`compare` replaces the model's `algorithm`, but {config.model.class_path} takes no such argument."
    if msg:
        raise ArgumentError(msg)
    given = config.get("seed_everything")
    seed = given if isinstance(given, int) and not isinstance(given, bool) else 0
    options = {name: config.get(name) for name in ("methods", "trials", "seeds", "folds", "processes")}
    options |= {"rectangles": config.model.init_args.get("rectangles") or (), "first_seed": seed}
    rectangle = model.algorithm.min_tpr, model.algorithm.max_fpr
    report = Comparison(_setup(config, instantiate, seed), config.folder, rectangle, **options).run()
    return f"{report}\n\n{Path(report.folder) / 'report.html'} shows the curves, too."
