"""Results of finished trainings, a file for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from lightning_tpauc.errors import DataError
from lightning_tpauc.files import replacing

#: A dataclass of what JSON can hold.
Outcome = TypeVar("Outcome")


class Keyed:
    """A dataclass whose fields are all that changes a result."""

    @property
    def key(self) -> str:
        """All fields as text: equal keys have equal results."""
        return json.dumps(asdict(self), sort_keys=True)  # type: ignore[call-overload]  # subclasses are dataclasses


@dataclass
class Ended:
    """How a training ended.

    Attributes:
        status: ``"failed"`` if the numbers became infinite: a result about the setting, not a fault of the run.
        message: why it failed.
        seconds: wall-clock time, validations included.
    """

    status: Literal["finished", "failed"]
    message: str = ""
    seconds: float = 0.0


class Store(Generic[Outcome]):
    """Outcomes by key, one JSON file each. A file is written once, whole or not at all, so outcomes survive a kill.

    Runners of the same folder may work side by side. Tensors lie beside the outcome, written before it.

    Args:
        folder: where the files lie; made when the first one is written.
        kind: the dataclass of the outcomes.

    Example:
        >>> import tempfile
        >>> from lightning_tpauc.comparison.plan import Cell, Outcome, Run
        >>> store = Store(Path(tempfile.mkdtemp()), Outcome)
        >>> one, other = (Cell("STACO", 1.0, Run(seed, None), "train") for seed in range(2))
        >>> store.add(one, Outcome("finished", seconds=2.5), {"scores": torch.zeros(2)})
        >>> store.get(one).seconds, store.tensors(one)["scores"].shape, store.get(other)
        (2.5, torch.Size([2]), None)
    """

    def __init__(self, folder: Path, kind: type[Outcome]) -> None:
        self.folder, self.kind = folder, kind

    def path(self, cell: Keyed) -> Path:
        """The file of a cell."""
        return self.folder / f"{hashlib.blake2b(cell.key.encode(), digest_size=8).hexdigest()}.json"

    def add(self, cell: Keyed, outcome: Outcome, tensors: Mapping[str, Any] | None = None) -> None:
        """Write an outcome."""
        path = self.path(cell)
        record = {"key": json.loads(cell.key), "outcome": asdict(outcome)}  # type: ignore[call-overload]  # a dataclass
        try:
            if tensors is not None:
                with replacing(path.with_suffix(".pt")) as file:
                    torch.save(dict(tensors), file)
            with replacing(path) as file:
                file.write((json.dumps(record, indent=1) + "\n").encode())
        except (OSError, RuntimeError) as error:  # torch raises a RuntimeError where a disk is full
            msg = (
                f"Can't write results to {self.folder} ({error}). What is there is kept: make room, or see to the "
                "folder's permissions, and give the same command again."
            )
            raise DataError(msg) from error

    def get(self, cell: Keyed) -> Outcome | None:
        """The outcome of a cell; ``None`` if it hasn't finished."""
        path = self.path(cell)
        return self._read(path)[1] if path.is_file() else None

    def tensors(self, cell: Keyed) -> dict[str, Any]:
        """The tensors of a finished cell."""
        tensors: dict[str, Any] = torch.load(self.path(cell).with_suffix(".pt"), map_location="cpu", weights_only=True)
        return tensors

    def __iter__(self) -> Iterator[tuple[str, Outcome]]:
        """All (key, outcome), in the order of their files' names."""
        for path in sorted(self.folder.glob("*.json")):
            yield self._read(path)

    def _read(self, path: Path) -> tuple[str, Outcome]:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return json.dumps(record["key"], sort_keys=True), self.kind(**record["outcome"])
        except (ValueError, TypeError, KeyError) as error:
            msg = f"{path} is not a file of results ({error}). Remove it, or choose another folder."
            raise DataError(msg) from error
