"""Texts of different lengths and a Hugging Face model: the tokenizer is the `collate_fn`.

The model is made from a configuration, so nothing is downloaded; for a trained one write
`AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=1)` and `AutoTokenizer.from_pretrained(NAME)`.
The notes are generated, one in eight of them of a patient with fever and rash at once. Takes seconds.
"""

import random

import torch
from lightning.pytorch import Trainer, seed_everything
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO

SIGNS = ["fever", "rash", "cough", "nausea", "pain", "fatigue"]
FILLERS = ["reports", "since", "monday", "mild", "severe", "some", "again", "after", "travel", "visit"]


def make_notes(count: int) -> list[tuple[str, int]]:
    notes = []
    for number in range(count):
        positive = number % 8 == 0
        signs = ["fever", "rash"] if positive else random.sample(SIGNS, 2)
        words = [*signs, *random.choices(FILLERS, k=random.randint(2, 9))]
        random.shuffle(words)
        notes.append((" ".join(words), int({"fever", "rash"} <= set(words))))
    return notes


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *SIGNS, *FILLERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106  # a word, no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106


def main(epochs: int = 15) -> None:
    seed_everything(0, verbose=False)
    tokenizer = make_tokenizer()

    def collate(items: list[tuple[str, int]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        texts, labels = zip(*items, strict=True)
        tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
        # a plain dictionary: its entries are passed to the model by name
        return {name: tokens[name] for name in ("input_ids", "attention_mask")}, torch.tensor(labels)

    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    config.num_labels = 1  # one score; two logits do as well
    data = PosNegDataModule(
        make_notes(800), val_dataset=make_notes(400), num_pos=16, num_neg=48, collate_fn=collate, batch_size=200
    )
    model = TPAUCModule(BertForSequenceClassification(config), STACO(min_tpr=0.7, max_fpr=0.3))
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(model, data)
    reached = trainer.validate(model, data, verbose=False)[0]
    print(f"TPAUC {reached['val/tpauc']:.3f}, AUROC {reached['val/auroc']:.3f}")


if __name__ == "__main__":
    main()
