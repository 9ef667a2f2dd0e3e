"""Several labels at once, some of them not measured: train, judge and predict each, with what each demands.

`python examples/labels.py` makes a table of molecules' properties and three assays. Takes seconds.
"""

import numpy as np
import pandas as pd
from lightning.pytorch import Trainer, seed_everything

from lightning_tpauc import PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import MLP

ASSAYS = ["liver", "heart", "skin"]
DEMANDS = {"liver": {"min_tpr": 0.8, "max_fpr": 0.3, "weight": 2.0}}  # the others: TPR >= 0.5 at FPR <= 0.5


def make_table(rows: int = 3000) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    properties = generator.normal(size=(rows, 12)).astype(np.float32)
    hidden = np.tanh(properties @ generator.normal(size=(12, 4))) @ generator.normal(size=(4, len(ASSAYS)))
    active = (hidden + generator.normal(size=hidden.shape) > 3).astype(float)
    active[generator.random(active.shape) < 0.3] = np.nan  # an empty cell of the table
    table = pd.DataFrame(properties, columns=[f"property_{k}" for k in range(12)])
    return table.assign(**dict(zip(ASSAYS, active.T, strict=True)))


def main() -> None:
    seed_everything(0, verbose=False)
    table = make_table()
    parts = [(part.drop(columns=ASSAYS), part[ASSAYS]) for part in (table[:1600], table[1600:2300], table[2300:])]
    data = PosNegDataModule(parts[0], parts[1], parts[2], predict_dataset=parts[2][0].to_numpy())
    model = TPAUCModule(MLP(12, num_labels=len(ASSAYS)), STACO(), tasks=DEMANDS)
    writer = PredictionWriter("predictions.csv")
    trainer = Trainer(accelerator="cpu", max_epochs=30, callbacks=[writer], logger=False, enable_checkpointing=False)
    trainer.fit(model, data)

    tested = trainer.test(model, data, verbose=False)[0]
    trainer.predict(model, data)
    for name in ASSAYS:
        area, sensitivity = tested[f"test/tpauc/{name}"], tested[f"test/sensitivity_at_threshold/{name}"]
        lower, upper = (tested[f"test/sensitivity_at_threshold_{end}/{name}"] for end in ("lower", "upper"))
        print(f"{name}: TPAUC {area:.3f}, sensitivity {sensitivity:.3f}, 95% interval {lower:.3f} to {upper:.3f}")
    print(f"mean TPAUC {tested['test/tpauc']:.3f}; predictions.csv has a score and a decision of each assay")


if __name__ == "__main__":
    main()
