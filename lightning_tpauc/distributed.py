"""Several processes: gathering scores and other values, and what DDP and FSDP2 need.

The loss is a function of all scores together, so it can't be computed on parts. Each process sends its scores and the
index of its positives once. From the gathered tensors all processes compute the same loss and the same new state, so no
process owns state that others lack. The backward pass needs no communication, since every process knows the gradient
with respect to all scores. Each takes its own slice, times the number of processes, because data-parallel training
averages the parameters' gradients over processes.
"""

import atexit
import functools
import math
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.pairwise import TaskMasks

# torch 2.14 renamed all_gather_into_tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

#: ``(num_pos, num_neg, num_dual_neg)`` of every rank.
Shares = tuple[tuple[int, int, int], ...]


class GatheredScores(NamedTuple):
    """Scores of one global batch, the same on every rank: what an ``auxiliary_loss`` gets.

    ``pos_scores`` ``(S,)``, ``neg_scores`` and ``dual_neg_scores`` have gradients, and ``index`` says which positives
    these are. With several tasks all have a leading dimension of tasks, and ``masks`` say which scores count.
    """

    pos_scores: Tensor
    neg_scores: Tensor
    dual_neg_scores: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a batch
    masks: TaskMasks | None = None


def world_size() -> int:
    """Number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def starts_processes(trainer: Trainer) -> bool:
    """Whether the Trainer works on copies of the module in processes that end with the run (spawned or forked)."""
    return isinstance(getattr(trainer.strategy, "launcher", None), _MultiProcessingLauncher)


@functools.cache
def destroy_group_at_exit() -> None:
    """Destroy the process group before the interpreter shuts down, as Lightning does for NCCL only.

    A thread of Gloo would abort the process (SIGABRT): https://github.com/pytorch/pytorch/pull/179291. On a rank that
    failed, destroying waits for the other ranks, so it is given up after five seconds.
    """

    def destroy() -> None:
        if dist.is_available() and dist.is_initialized() and dist.get_backend() != "nccl":
            thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
            thread.start()
            thread.join(5.0)

    atexit.register(destroy)


def split_scores(scores: Tensor, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Cut joint scores into positives, negatives and dual negatives; :class:`ArgumentError` if they are too few."""
    if scores.ndim != 1 or scores.numel() != sum(sizes):
        raise ArgumentError(
            f"Expected one score per example, shape ({sum(sizes)},) for {sizes[0]} positives, {sizes[1]} negatives and "
            f"{sizes[2]} dual negatives, but `forward` returned shape {tuple(scores.shape)}."
        )
    pos, neg, dual = scores.split_with_sizes(sizes)  # what Tensor.split calls after looking at its arguments
    return pos, neg, dual


def gather_scores(
    parts: tuple[Tensor, Tensor, Tensor | None], index: Tensor, masks: TaskMasks | None, shares: Shares | None
) -> GatheredScores:
    """Scores, index and masks of all ranks, rank after rank within each class; differentiable in the scores.

    Args:
        parts: float32 or float64 scores of this rank's positives ``(num_pos,)``, negatives and dual negatives; of K
            tasks with a leading dimension.
        index: int64 tensor ``(num_pos,)`` or ``(K, num_pos)`` of this rank, at least 0.
        masks: of several tasks, of the shapes of the parts.
        shares: the three sizes on all ranks; ``None`` lets the ranks exchange them, which synchronises the device.
    """
    pos, neg = parts[:2]
    dual = pos[..., :0] if parts[2] is None else parts[2]
    world = world_size()
    if world == 1:
        return GatheredScores(pos, neg, dual, index, masks)
    sizes = pos.shape[-1], neg.shape[-1], dual.shape[-1]
    shares = tuple(gather_objects(sizes)) if shares is None else shares
    if len(shares) != world or shares[rank()] != sizes:
        raise ArgumentError(
            f"Expected `shares` of {world} ranks, {sizes} at rank {rank()}, but got {shares}. Build the loader of "
            "the batch after the process group."
        )
    # an example's scores lie together, so that those of all tasks are cut like those of one
    scores = torch.cat([pos, neg, dual], -1).movedim(-1, 0)
    places = torch.cat([index, index.new_zeros(*index.shape[:-1], sizes[1] + sizes[2])], -1)
    if masks is not None:  # where a score is not there, its place is -1
        dual_mask = masks.pos[:, :0] if masks.dual_neg is None else masks.dual_neg
        places = places.where(torch.cat([masks.pos, masks.neg, dual_mask], -1), -1)
    gathered, every_place = _exchange(scores.detach(), places.movedim(-1, 0), shares)
    joint: Tensor = _Joint.apply(scores, gathered, shares, rank())
    totals = [sum(share[k] for share in shares) for k in range(3)]
    every = [part.movedim(0, -1) for part in torch.split(joint, totals)]
    placed = [part.movedim(0, -1) for part in torch.split(every_place, totals)]
    if masks is not None:
        masks = TaskMasks(placed[0] >= 0, placed[1] >= 0, placed[2] >= 0 if parts[2] is not None else None)
    return GatheredScores(every[0], every[1], every[2], placed[0].clamp_min(0), masks)


def gather_objects(own: Any, *, alone: bool = False) -> list[Any]:
    """Picklable objects of all ranks, in rank order; a collective, unless this rank does it ``alone``."""
    if world_size() == 1 or alone:
        return [own]
    objects: list[Any] = [None] * world_size()
    dist.all_gather_object(objects, own)
    return objects


class _Joint(torch.autograd.Function):
    """All ranks' scores in the forward pass, this rank's slice of the gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, gathered: Tensor, shares: Shares, rank: int) -> Tensor:  # noqa: ARG004
        ctx.shares, ctx.rank = shares, rank
        return gathered.view_as(gathered)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        parts = torch.split(grad, [share[k] for k in range(3) for share in ctx.shares])
        return torch.cat(parts[ctx.rank :: len(ctx.shares)]) * len(ctx.shares), None, None, None


def _exchange(scores: Tensor, places: Tensor, shares: Shares) -> tuple[Tensor, Tensor]:
    """Scores and places of all ranks, class after class, by one collective of 32-bit words, padded to equal length."""
    kinds = scores, places
    per_example = [math.prod(kind.shape[1:]) * kind.element_size() // 4 for kind in kinds]
    message = torch.cat([_words(kind) for kind in kinds])
    width = max(sum(share) for share in shares) * sum(per_example)
    padded = message.new_zeros(width)
    padded[: message.numel()] = message
    received = message.new_empty(len(shares) * width)
    _all_gather(received, padded)
    joint = []
    for kind, begin, words in zip(kinds, (0, per_example[0]), per_example, strict=True):
        cut = []
        for row, share in zip(torch.split(received, width), shares, strict=True):
            part = row[begin * sum(share) : (begin + words) * sum(share)].clone().view(kind.dtype)
            cut.append(torch.split(part.view(-1, *kind.shape[1:]), list(share)))
        joint.append(torch.cat([part for of_class in zip(*cut, strict=True) for part in of_class]))
    return joint[0], joint[1]


def _words(tensor: Tensor) -> Tensor:
    # a fresh copy: tensors of one entry count as contiguous with any stride, and view() looks at the stride
    copied = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
    return copied.view(-1).view(torch.int32)


def prebuild_ddp_buckets(trainer: Trainer) -> None:
    """Let DDP arrange its buckets before the first step; a collective.

    DDP reduces gradients in buckets, and rearranges these after the first backward pass of a process. The place of a
    number in its bucket decides in which order the ranks' values are added, and so how the sum is rounded. The first
    step of a resumed run is a later step of the unbroken run, so the two would round differently. A backward pass of
    zeros before training gives all steps the same buckets. Two ranks do not need it, since a + b = b + a.
    """
    model = trainer.strategy.model
    if world_size() < 3 or not isinstance(model, DistributedDataParallel) or model.static_graph:
        return
    loss = torch.stack([0 * p.sum().float() for p in model.parameters() if p.requires_grad]).sum()
    trainer.strategy.pre_backward(loss)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    model.zero_grad()


def reshard(module: nn.Module) -> None:
    """Free the unsharded copies in every FSDP2 module, so that the next forward pass gathers the current weights.

    After a forward pass without backward a root module may keep its unsharded copy. It would then ignore weights that
    were written into its shards. Ordinary modules are left alone.
    """
    for child in module.modules():
        if isinstance(child, FSDPModule):
            child.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The unsharded tensor; a collective for a DTensor, the tensor itself otherwise."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assign(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy whole or sharded ``sources`` into ``targets``, in place and in the targets' dtype and sharding."""
    for target, source in zip(targets, sources, strict=True):
        if isinstance(target, DTensor) and not isinstance(source, DTensor):
            source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
        target.detach().copy_(source)
