"""The position of a stream of negatives. The training process keeps it, even if its workers read the stream."""

from __future__ import annotations

import io
import pickle
from collections import deque
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.data.core.sampler import current_world
from lightning_tpauc.data.streaming.negatives import NegativeStream
from lightning_tpauc.data.streaming.reader import Place
from lightning_tpauc.errors import DataError, TPAUCWarning

#: The place of each substream. Substreams are the parts of the stream that this process or its workers read.
Places = dict[int, Place]


class StreamCursor:
    """Remembers the stream's place after each of the last steps, for checkpoints and for the next epoch.

    If batches are prefetched, readers run ahead of training. So each batch carries the place behind it, and a
    checkpoint holds the place behind the last batch that was trained on.

    Args:
        stream: the stream.

    Example:
        >>> cursor = StreamCursor(NegativeStream(torch.utils.data.ChainDataset([])))
        >>> cursor.begin(step=0, num_substreams=1, fresh=True)
        {0: Place(position=0, passes=0, index=0, state=None, offset=0)}
        >>> cursor.record(1, 0, Place(position=64, index=64))
        >>> cursor.state(1)
        {'lanes': [[64, 0, 64, None, 0]]}
    """

    def __init__(self, stream: NegativeStream) -> None:
        self.stream = stream
        # A batch may be handed out before training on the previous one has ended.
        self._history: deque[tuple[int, Places]] = deque(maxlen=4)
        self._loaded: tuple[int, list[Any]] | None = None
        self._requested: dict[int, int] = {}
        self._checked = False

    def begin(self, step: int, num_substreams: int, *, fresh: bool) -> Places:
        """The places where the substreams continue when an iteration begins.

        Args:
            step: number of batches that were trained on.
            num_substreams: number of substreams that this process reads.
            fresh: whether its readers have read nothing yet.
        """
        fresh = fresh or self._loaded is not None
        self._adopt_loaded(num_substreams)
        start = dict.fromkeys(range(num_substreams), Place())
        places = start if step == 0 else self._at(step)
        if places is None or set(places) != set(start):
            _say_starts_over(*self._unknown())
            places = start
        elif any(place.state is None and place.position for place in places.values()):
            places = self._resumed(places) if fresh else self._after_prefetched(places)
        self._history.append((step, places))
        self._requested = {substream: place.position for substream, place in places.items()}
        return dict(places)

    def aside(self, step: int, num_substreams: int) -> Places:
        """Where a pass beside training begins: training's place if readers can be put there, else the beginning."""
        start = dict.fromkeys(range(num_substreams), Place())
        loaded = self._loaded is not None and self._loaded[0] == step
        places = (self._loaded_places(num_substreams) if loaded else self._at(step)) or start
        return {
            substream: place if place.state is not None else Place() for substream, place in (start | places).items()
        }

    def request(self, substream: int, count: int) -> int:
        """Note that a substream will read ``count`` examples; returns how many it has read before."""
        position = self._requested[substream]
        self._requested[substream] += count
        return position

    def record(self, step: int, substream: int, place: Place) -> None:
        """Note that ``step`` batches were handed out, and the substream's place behind the last one."""
        if place.state is not None and not self._checked:
            _check_can_be_saved(self.stream, place.state)
            self._checked = True
        latest = self._history[-1][1] if self._history else {}
        self._history.append((step, latest | {substream: place}))

    def state(self, step: int) -> dict[str, Any] | None:
        """This process's part of a checkpoint after ``step`` steps."""
        if self._loaded is not None and self._loaded[0] == step:  # nothing was read since
            return self._own_loaded()
        places = self._at(step)
        if not places:
            return None
        plain = [place._replace(state=_unpickled(place.state)) for _, place in sorted(places.items())]
        return {"lanes": [list(place) for place in plain]}

    def load(self, step: int, states: list[dict[str, Any] | None]) -> None:
        """Continue from a checkpoint that holds the :meth:`state` of each process."""
        self._loaded = step, states

    def _adopt_loaded(self, num_substreams: int) -> None:
        if self._loaded is None:
            return
        places = self._loaded_places(num_substreams)
        step, _ = self._loaded
        self._loaded = None
        self._history.clear()
        if places is not None:
            self._history.append((step, places))

    def _loaded_places(self, num_substreams: int) -> Places | None:
        """The places of this process's substreams in the checkpoint; ``None`` if it does not hold them."""
        own = self._own_loaded()
        if own is None or len(own["lanes"]) != num_substreams:
            return None
        places = [Place(*entries) for entries in own["lanes"]]
        return dict(enumerate(p if p.state is None else p._replace(state=pickle.dumps(p.state)) for p in places))

    def _own_loaded(self) -> dict[str, Any] | None:
        """What the checkpoint holds for this process."""
        if self._loaded is None:
            return None
        world, states = current_world(), self._loaded[1]
        if self.stream.split == "deal":
            rank: int | None = min(world.rank, len(states) - 1)  # All processes have read the same examples.
        else:
            rank = world.rank if len(states) == world.size else None
        own: dict[str, Any] | None = states[rank] if rank is not None else None
        return own

    def _at(self, step: int) -> Places | None:
        return next((places for at, places in reversed(self._history) if at == step), None)

    def _resumed(self, places: Places) -> Places:
        why = f"{type(self.stream.dataset).__name__} has no `state_dict` and `load_state_dict`"
        if self.stream.resume == "skip":
            count = sum(place.index for place in places.values())
            text = f"The stream of negatives can't be put where it stood ({why}): {count} examples are read past first."
            rank_zero_warn(text, category=TPAUCWarning)
            return places
        remedy = "Give it both, or pass NegativeStream(..., resume='skip') to read past what was consumed."
        _say_starts_over(why, remedy)
        return {substream: Place(position=place.position) for substream, place in places.items()}

    def _after_prefetched(self, places: Places) -> Places:
        """An epoch cut short leaves prefetched examples unused. A stream that can't go back continues behind them."""
        return {
            substream: p._replace(position=max(p.position, self._requested[substream]))
            for substream, p in places.items()
        }

    def _unknown(self) -> tuple[str, str]:
        if self.stream.split == "deal":
            return "the checkpoint does not hold its place", "Resume from one that was written with this stream."
        why = "its places were saved for other numbers of processes or workers, or not at all"
        return why, "Resume with the same numbers, or use NegativeStream(..., split='deal')."


def _say_starts_over(why: str, remedy: str) -> None:
    text = f"The stream of negatives starts over while training goes on: {why}. {remedy}"
    rank_zero_warn(text, category=TPAUCWarning)


def _unpickled(state: bytes | None) -> Any:
    return None if state is None else pickle.loads(state)  # noqa: S301  # pickled by a reader of this run


def _check_can_be_saved(stream: NegativeStream, state: bytes) -> None:
    """Raise now if a checkpoint with this state could not be read later."""
    file = io.BytesIO()
    torch.save(_unpickled(state), file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        msg = (
            f"The `state_dict` of the stream of negatives ({type(stream.dataset).__name__}) holds what a checkpoint "
            f"can't: {str(error).splitlines()[0]} Return numbers, strings, tensors, lists and dictionaries of these."
        )
        raise DataError(msg) from error
