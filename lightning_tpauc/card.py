"""What the reader of a published model has to know: data, rectangle, threshold, and what was reached."""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.data.examples import listed
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.labels import rectangles_of


def model_card(
    module: TPAUCModule,
    datamodule: PosNegDataModule | None = None,
    tested: Mapping[str, float] | None = None,
    *,
    title: str = "Model card",
    use: str = "To be written: what the model is made for, and what it is not made for.",
) -> str:
    """A model card in Markdown, to complete by hand and publish beside the weights.

    Args:
        module: a trained module.
        datamodule: its data, whose numbers of training examples the card gives.
        tested: what a test gave, ``trainer.test(module, datamodule)[0]``.
        title: the headline.
        use: what the model is made for.

    Returns:
        The text. On the threshold it says what ``print(module.operating_point)`` says.

    Example:
        >>> import torch
        >>> print(model_card(TPAUCModule(torch.nn.Linear(4, 1)), use="A demonstration.").splitlines()[2])
        A demonstration.
    """
    names = ("score",) if module.trained_labels is None else module.trained_labels.names
    point, size = module.operating_point, sum(parameter.numel() for parameter in module.parameters())
    trained = f"Trained with lightning_tpauc by {module.algorithm}; {size:,} parameters."
    rectangles = [(name, *map("{:g}".format, sides)) for name, sides in zip(names, rectangles_of(module), strict=True)]
    parts = [f"# {title}", use, "## Training", trained, _table(("", "TPR at least", "FPR at most"), rectangles)]
    if datamodule is not None:
        datamodule.setup("fit")
        positives = datamodule.num_positives if len(names) == 1 else listed(datamodule.num_positives)
        parts += ["## Data", f"Trained on {positives} positives and {datamodule.num_negatives} negatives."]
    decides = "\n".join(f"- {line}" for line in str(point).splitlines())
    parts += ["## Threshold", "None was chosen." if point is None else decides]
    if tested:
        ends = ("_lower", "_upper")
        low, high = ({name.replace(end, "", 1): v for name, v in tested.items() if end in name} for end in ends)
        values = [
            (name, f"{value:.4f}", f"{low[name]:.4f} to {high[name]:.4f}" if name in low else "")
            for name, value in sorted(tested.items())
            if not any(end in name for end in ends)
        ]
        parts += ["## Test", _table(("", "value", "95% interval"), values)]
    return "\n\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
