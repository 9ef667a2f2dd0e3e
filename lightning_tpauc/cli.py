"""The command ``lightning-tpauc {fit,validate,test,predict} --config FILE``."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import TPAUCError
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.version import __version__

__all__ = ("TPAUCCLI", "main")


class TPAUCCLI(LightningCLI):
    """LightningCLI for TPAUC modules and their data modules, both given by ``class_path`` and ``init_args``."""

    def __init__(self, args: ArgsType = None, run: bool = True) -> None:
        super().__init__(
            TPAUCModule,
            PosNegDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,  # the module takes optimizer and scheduler itself
            save_config_kwargs={"overwrite": True},  # without a logger the second run in a folder would stop
            args=args,
            run=run,
        )

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        kwargs.update(prog="lightning-tpauc", version=__version__)
        return super().init_parser(**kwargs)

    def after_fit(self) -> None:
        """Print what the run reached."""
        self._report(self.trainer.callback_metrics)

    @rank_zero_only
    def _report(self, metrics: dict[str, Any]) -> None:
        algorithm = self.model.algorithm
        print(f"{type(algorithm).__name__}, TPR >= {algorithm.min_tpr:g} and FPR <= {algorithm.max_fpr:g}:")  # noqa: T201
        for name in sorted(metrics):
            if name.startswith(("val/", "test/")):
                print(f"  {name} = {float(metrics[name]):.4f}")  # noqa: T201
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.monitor and callback.best_model_score is not None:
                best = f"  best {callback.monitor} = {float(callback.best_model_score):.4f}"
                print(f"{best}  {callback.best_model_path}")  # noqa: T201


def main(args: ArgsType = None) -> None:
    """Run the command; errors that the user can mend end it with one line instead of a traceback.

    Args:
        args: the command line without the program's name; ``sys.argv`` if ``None``.
    """
    try:
        TPAUCCLI(args)
    except TPAUCError as error:
        sys.exit(f"lightning-tpauc: error: {error}")
