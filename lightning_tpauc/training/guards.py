"""What a training says and compares: advice, equal settings of all ranks, what is not finite, sigmoids too many."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.data.examples import names_in
from lightning_tpauc.distributed import gather_objects, whole, world_size
from lightning_tpauc.errors import ArgumentError, TPAUCAdvice, warn_on_rank_zero
from lightning_tpauc.scoring.forward import ScoringModel, wants_raw_scores

# ---------------------------------------------------------------- advice before the first step

#: With fewer examples of a class in the rectangle, a batch is too small a sample of it.
_FEWEST = 4
#: A linear layer's learning rates are made for columns that vary by about 1: this is too much more.
_WIDE = 100.0
#: A column so far from 0, in its standard deviations, is nearly a constant to the model.
_FAR = 20.0


def uneven_columns(inputs: Any, model: nn.Module) -> str | None:
    """Advice if a column of a batch should be standardised; ``None`` if not, or if the inputs are no table of floats.

    Only of a model whose first layer with weights is linear; others may scale the table by themselves.
    """
    first = next((each for each in model.modules() if [*each.parameters(False), *each.buffers(False)]), None)
    if not is_feature_matrix(inputs) or len(inputs) < 2 or not isinstance(first, nn.Linear):
        return None
    values = inputs.detach().cpu().double()
    means, deviations = values.mean(dim=0), values.std(dim=0)
    varies = (deviations > 0) & deviations.isfinite()
    if not bool(varies.any()):
        return None
    several = ((values != values.amin(dim=0)) & (values != values.amax(dim=0))).any(dim=0)  # a switch may be rare
    wide = deviations / min(1.0, float(deviations[varies].median())) / _WIDE
    far = (means.abs() / deviations / _FAR).where(several, 0.0)
    excess = torch.maximum(wide, far).where(varies, 0.0)
    worst = int(excess.argmax())
    if float(excess[worst]) < 1.0:
        return None
    return (
        f"{column_name(worst, model)} of the inputs has a standard deviation of {float(deviations[worst]):.2g} around "
        f"{float(means[worst]):.3g}: the model learns little from it, or from the other columns. Standardise the "
        "columns, as scikit-learn's StandardScaler does, fitted to the training rows."
    )


def look_at_rectangle(algorithm: Algorithm, trainer: Trainer) -> None:
    """Warn if its sides seem swapped, or if it holds too few examples of a PosNegDataModule's batch."""
    low, high = algorithm.min_tpr, algorithm.max_fpr
    if 0.0 < low < high:
        advise(
            f"At {high:g} of false alarms a model that guesses finds {high:g} of the positives, more than "
            f"min_tpr={low:g}: are `min_tpr` and `max_fpr` swapped, or in percent?"
        )
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    if algorithm.can_shrink_rectangle and algorithm.task_sizes is None and hasattr(plans, "most_positives"):
        sizes = plans.global_sizes(trainer.world_size)
        classes = (
            ("positives", sizes.num_pos, 1.0 - low, f"min_tpr={low:g}", "num_pos"),
            ("negatives", sizes.num_neg, high, f"max_fpr={high:g}", "num_neg"),
        )
        for kind, count, share, bound, argument in classes:
            needed = math.ceil(_FEWEST / share - 1e-9)  # 1 - 0.8 is 0.199999...
            if count < needed:
                advise(
                    f"Only {share * count:.2g} of the {count} {kind} a step lie in the rectangle with {bound}: raise "
                    f"`{argument}` to {needed} or more, if there are so many, or ask for a larger rectangle."
                )
                break


def advise(message: str | None) -> None:
    """Warn with ``message``, unless it is ``None``."""
    if message is not None:
        warn_on_rank_zero(message, TPAUCAdvice)


# ---------------------------------------------------------------- what a training ends with


def say_which_weights(module: ScoringModel) -> None:
    """Tell, at a training's end, which weights the model holds."""
    state = module.training_state
    best = state.best
    if module.operating_point is None:
        missing = "No validation gave a value: the model has the last weights, and no threshold. Pass `val_dataset` or "
        missing += "`val_fraction`, with both classes."
        if best is not None and math.isfinite(best.value[0]):
            missing = "The model has no threshold: `calibration_dataset` lacks a class. Pass one with both, or none."
        rank_zero_info(missing)
    elif best is not None and best.weights and best.step < state.batches_seen:
        area, auroc = best.value
        monitor, value = ("val/tpauc", area) if area > 0.0 else ("val/auroc", auroc)
        by = f"{monitor} {value:.4f}" + ("" if area > 0.0 else ", as val/tpauc was always 0,")
        rank_zero_info(
            f"The model has the weights that validated best: {by} after {best.step} of {state.batches_seen} steps. "
            f"ModelCheckpoint saves them if it has monitor={monitor!r}, mode='max', and else those of another step."
        )


# ---------------------------------------------------------------- equal settings of all ranks

#: The address in the default ``repr`` of an object.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def require_agreement(describe: Callable[[], dict[str, Any]]) -> None:
    """Compare the descriptions of all ranks, which would otherwise wait for each other; a collective."""
    if world_size() == 1:
        return
    own = {name: _ADDRESS.sub("", repr(value)) for name, value in describe().items()}
    said: list[dict[str, str]] = gather_objects(own)
    differing = []
    for name in own:
        other = next((rank for rank, found in enumerate(said) if found.get(name) != said[0].get(name)), None)
        if other is not None:
            differing.append(f"{name}: {said[0].get(name)} on rank 0, {said[other].get(name)} on rank {other}")
    if differing:
        raise ArgumentError(
            f"The processes of this run differ in what they must share: {'; '.join(differing)}. Give all of them the "
            "same data and arguments: seed what is drawn at random, and derive nothing from the rank."
        )


def shared_settings(trainer: Trainer, module: ScoringModel) -> dict[str, Any]:
    """What a script may make differ between ranks unawares, such as data that are drawn or split at random."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    function = trainer.state.fn
    data = datamodule.description(function.value) if function and hasattr(datamodule, "description") else {}
    shared = {"data module": type(datamodule).__name__, **data}
    if function != TrainerFn.FITTING:
        return shared
    state, labels = module.training_state, module.trained_labels
    limits = {f"`{name}`": getattr(trainer, name) for name in ("max_epochs", "max_steps")}
    own = {"algorithm": module.algorithm, "labels": labels, "steps of the checkpoint": state.batches_seen}
    return {**shared, **limits, **own, "optimizer": " ".join(repr(trainer.optimizers[0]).split())}


# ---------------------------------------------------------------- what is not finite


def is_feature_matrix(inputs: Any) -> bool:
    """Whether inputs are a dense floating tensor ``(N, D)``."""
    dense = isinstance(inputs, Tensor) and inputs.layout == torch.strided
    return bool(dense and inputs.is_floating_point() and inputs.ndim == 2)


def column_name(number: int, model: Any) -> str:
    """What to call a column of the inputs of a model, whose ``input_layout`` may hold its name."""
    names = names_in(getattr(model, "input_layout", None), "columns")
    if names is None and isinstance(model, LightningModule):  # before the first batch
        names = getattr(model.trainer.train_dataloader, "columns", None)
    return f"Column {number}" if names is None or number >= len(names) else f"Column {names[number]!r}"


def columns_not_finite(inputs: Any, model: Any) -> str:
    """Says which columns of a table are nan or infinite somewhere; empty if none is."""
    bad = (~inputs.isfinite()).sum(0) if is_feature_matrix(inputs) else torch.zeros(0)
    if not bool(bad.any()):
        return ""
    shown = [f"{column_name(k, model)} has {int(bad[k])}" for k in bad.nonzero()[:3, 0].tolist()]
    return (
        f"the inputs of a batch are nan or infinite in {int((bad > 0).sum())} of {len(bad)} columns: "
        f"{', '.join(shown)}. Fill these in, or leave such rows out before training."
    )


def diagnose(module: ScoringModel) -> str:
    """Say what is not finite and what to change."""
    algorithm = module.algorithm
    broken = algorithm.non_finite_states()
    weights = [name for name, p in module.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    sizes = sorted({algorithm.step_sizes[name] for name in broken if name in algorithm.step_sizes})
    what, remedy = f"the weights ({', '.join(weights[:3])})" if weights else "the loss", lower_the_rate(module)
    if sizes and not weights:
        what = f"the state {' and '.join(f'`{name}`' for name in broken)}"
        remedy = f"Lower {' and '.join(f'`{name}`' for name in sizes)} of {type(algorithm).__name__}."
    return f"Not finite after {module.training_state.batches_seen} steps: {what}. {remedy}"


def lower_the_rate(module: ScoringModel) -> str:
    """What helps against numbers that grow without bound."""
    unbounded = module.score_activation == "identity" and not module.algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`, standardise the inputs{bound}."


# ---------------------------------------------------------------- the sigmoid before the loss

#: Nodes of autograd's graph that only rearrange or convert their input.
_REARRANGING = (
    *("Alias", "AsStrided", "Clone", "Reshape", "Select", "Slice", "Split", "Squeeze", "ToCopy", "Unbind", "Unsqueeze"),
    *("UnsafeView", "View"),
)


def is_squashed(scores: Tensor) -> bool:
    """Whether scores with a gradient are the output of a sigmoid or softmax, according to autograd's graph."""
    node: Any = scores.grad_fn
    while node is not None and node.name().startswith(_REARRANGING):
        node = node.next_functions[0][0]
    return node is not None and bool(node.name().startswith(("Sigmoid", "Hardsigmoid", "Softmax")))


def warn_of_activation(scores: Tensor, algorithm: Algorithm, activation: Literal["identity", "sigmoid"]) -> bool:
    """Warn of a sigmoid too many or too few, which would change the training; return whether the scores have one."""
    name, squashed = type(algorithm).__name__, is_squashed(scores)
    if squashed:
        if wants_raw_scores(algorithm, activation):
            warn_on_rank_zero(
                f"The model ends in a sigmoid or softmax, but {name} is made for raw scores. Leave it out of the "
                "model; `score_activation='sigmoid'` is for the methods that want one."
            )
    elif algorithm.takes_probabilities and activation == "identity":
        warn_on_rank_zero(
            f"{name} is made for scores in [0, 1]: set `score_activation='sigmoid'` "
            "(`--model.score_activation sigmoid`), unless the model's scores are probabilities already."
        )
    return squashed
