"""Optuna chooses the learning rate, the width and the batch, and stops trials whose val/tpauc falls behind.

The defaults need no tuning to start with; this is how to go on from there. Needs `pip install optuna`; takes a minute.
"""

import lightning.pytorch as pl
import optuna
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import MLP


class Prune(Callback):
    """Reports each validation to Optuna, and gives up where Optuna says so."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Without the check before training, whose value is that of the start."""
        if trainer.sanity_checking:
            return
        self.trial.report(float(trainer.callback_metrics["val/tpauc"]), step=trainer.global_step)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def objective(trial: optuna.Trial, epochs: int = 8) -> float:
    pl.seed_everything(trial.number, verbose=False)
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    width = trial.suggest_categorical("width", [8, 32])
    num_neg = trial.suggest_categorical("num_neg", [64, 192])
    model = TPAUCModule(
        MLP(64, (width,)), STACO(min_tpr=0.8, max_fpr=0.2), lambda parameters: torch.optim.Adam(parameters, lr=lr)
    )
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, callbacks=[Prune(trial)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = DigitsDataModule(val_fraction=0.3, num_pos=32, num_neg=num_neg)
    trainer.fit(model, data)
    # of the weights that validated best, which are those that training leaves
    return trainer.validate(model, data, verbose=False)[0]["val/tpauc"]


def main(trials: int = 8) -> optuna.Study:
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=10),
    )
    study.optimize(objective, n_trials=trials)
    pruned = len(study.get_trials(states=[optuna.trial.TrialState.PRUNED]))
    print(f"val/tpauc {study.best_value:.3f} with {study.best_params}; {pruned} of {trials} trials were stopped early")
    return study


if __name__ == "__main__":
    main()
