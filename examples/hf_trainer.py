"""`TPAUCLoss` in the Trainer of Hugging Face, through `compute_loss_func`.

As a part of the model the loss moves with it, stays as it is in evaluation, and is in every checkpoint. The model is
made from a configuration, so nothing is downloaded. The notes are generated, one in eight of them of a patient with
fever and rash at once. Takes seconds.
"""

from typing import Any

import numpy as np
import torch
from text import make_notes, make_tokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from lightning_tpauc import TPAUCLoss
from lightning_tpauc.functional import two_way_partial_auroc


class Progress(TrainerCallback):
    """Tells the loss how far the run is, so that its rectangle shrinks."""

    def __init__(self, loss: TPAUCLoss) -> None:
        self.loss = loss

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loss.progress = state.global_step / state.max_steps


def judge(prediction: Any) -> dict[str, float]:
    scores, labels = np.squeeze(prediction.predictions, 1), prediction.label_ids
    return {"tpauc": float(two_way_partial_auroc(scores, labels, 0.7, 0.3))}


def main(epochs: int = 12, folder: str = "hf_trainer", **options: Any) -> Trainer:
    set_seed(0)
    tokenizer = make_tokenizer()
    rows = [{**tokenizer(text), "labels": label} for text, label in make_notes(1200)]
    for row in rows:
        row.pop("token_type_ids", None)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    config.num_labels = 1  # one score; two logits do as well
    model = BertForSequenceClassification(config)
    loss = TPAUCLoss(min_tpr=0.7, max_fpr=0.3)
    model.add_module("tpauc_loss", loss)

    def compute_loss(outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        value: torch.Tensor = loss(outputs.logits, labels)  # of accumulated batches the Trainer takes the sum
        return value

    settings: dict[str, Any] = {
        "per_device_train_batch_size": 64,
        "learning_rate": 3e-3,
        "report_to": "none",
        "use_cpu": True,
    }
    return Trainer(
        model,
        TrainingArguments(folder, num_train_epochs=epochs, eval_strategy="epoch", **settings | options),
        train_dataset=rows[:800],
        eval_dataset=rows[800:],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_loss_func=compute_loss,
        compute_metrics=judge,
        callbacks=[Progress(loss)],
    )


if __name__ == "__main__":
    fitted = main()
    fitted.train()
    print(f"TPAUC {fitted.evaluate()['eval_tpauc']:.3f}")
