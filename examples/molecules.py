"""Molecules of a CSV file of SMILES and labels, and a graph network. Needs `pip install 'lightning-tpauc[graph]'`.

`python examples/molecules.py FILE.csv --label COLUMN` reads the column "smiles"; rows without a label are left out.
Without a file it makes one: chains with a functional group, of which aromatic amines are the toxic ones.
"""

import argparse
import itertools
from pathlib import Path

from lightning.pytorch import Trainer, seed_everything

from lightning_tpauc import PredictionWriter, SMILESDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import GIN

CHAINS = ["C" * length for length in range(1, 13)] + [f"C{'C' * length}(C)C" for length in range(1, 6)]
GROUPS = ["O", "N", "F", "Cl", "C(=O)O", "C#N", "S", "OC", "c1ccccc1", "c1ccccc1O", "c1ccc(N)cc1", "c1ccc(C)cc1"]


def write_sample(path: Path) -> None:
    rows = [f"{chain}{group},{int(group == 'c1ccc(N)cc1')}" for chain, group in itertools.product(CHAINS, GROUPS)]
    path.write_text("smiles,toxic\n" + "\n".join(rows) + "\n")


def main(path: Path, label: str, epochs: int) -> None:
    seed_everything(0, verbose=False)
    if not path.exists():
        write_sample(path)
    data = SMILESDataModule(
        path.name, label, root=str(path.parent), cache_dir=str(path.parent), split="random", fractions=(0.6, 0.2, 0.2),
        num_pos=8, num_neg=24,
    )  # fmt: skip
    model = TPAUCModule(
        GIN(hidden_features=32, num_layers=3, dropout=0.0), STACO(min_tpr=0.5, max_fpr=0.5), score_activation="sigmoid"
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False,
        callbacks=[PredictionWriter("molecules_scores.csv")],
    )  # fmt: skip
    trainer.fit(model, data)
    reached = trainer.test(model, data, verbose=False)[0]
    print(f"TPAUC {reached['test/tpauc']:.3f}, AUROC {reached['test/auroc']:.3f}")
    trainer.predict(model, data.test_dataloader())  # `data.molecules.lines` has the line of the file of each molecule


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="?", default="molecules.csv", type=Path, help="made if it is not there")
    parser.add_argument("--label", default="toxic", help="column of 0 and 1")
    parser.add_argument("--epochs", default=40, type=int)
    args = parser.parse_args()
    main(args.csv, args.label, args.epochs)
