"""A training method of one's own: a hinge loss at the running score that a share `max_fpr` of the negatives exceeds."""

import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import Algorithm


class QuantileHinge(Algorithm):
    """Positives have to pass the threshold by 1, the hardest negatives to stay below it by 1."""

    def __init__(self, min_tpr: float = 0.5, max_fpr: float = 0.5, rate: float = 0.1) -> None:
        super().__init__(min_tpr, max_fpr)
        self.rate = rate
        self.add_state("threshold", "scalar")  # from here on allocated, moved, saved and rolled back

    def step(self, pos_scores, neg_scores, dual_neg_scores, index):  # noqa: ANN001, ANN201
        """Move the threshold, return the loss for the weights."""
        self.threshold.lerp_(neg_scores.detach().quantile(1 - self.max_fpr), self.rate)
        threshold = self.threshold.clone()  # the loss keeps it for backward while the state moves on
        hardest = (1 + neg_scores - threshold).relu() * (neg_scores > threshold)
        return (1 + threshold - pos_scores).relu().mean() + hardest.mean() / self.max_fpr


def main() -> None:
    seed_everything(0, verbose=False)
    y = (torch.rand(4000) < 0.1).long()
    x = torch.randn(4000, 10) + 0.6 * y[:, None]
    data = PosNegDataModule((x[:3000], y[:3000]), val_dataset=(x[3000:], y[3000:]), num_pos=32, num_neg=32)
    module = TPAUCModule(torch.nn.Linear(10, 1), QuantileHinge(max_fpr=0.3), lambda p: torch.optim.SGD(p, lr=0.05))
    trainer = Trainer(max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    before = trainer.validate(module, data, verbose=False)[0]["val/tpauc"]
    trainer.fit(module, data)
    after = trainer.validate(module, data, verbose=False)[0]["val/tpauc"]
    print(f"two-way partial AUC: {before:.3f} before, {after:.3f} after training")


if __name__ == "__main__":
    main()
