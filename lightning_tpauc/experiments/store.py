"""Results of finished trials in one SQLite file.

A plain table does: the settings are known before the first run, so nothing has to suggest any, and only the process
that hands out the work writes, so there is nothing to coordinate. A study of Optuna would bring three packages, and two
processes could take the same point of its grid.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from lightning_tpauc.errors import DataError
from lightning_tpauc.experiments.records import Outcome, Trial

__all__ = ("Store",)

_TABLE = """
CREATE TABLE IF NOT EXISTS trials (
    key TEXT PRIMARY KEY,
    experiment TEXT NOT NULL,
    method TEXT NOT NULL,
    kind TEXT NOT NULL,
    outcome TEXT NOT NULL,
    finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""
_INSERT = "INSERT OR REPLACE INTO trials (key, experiment, method, kind, outcome) VALUES (?, ?, ?, ?, ?)"


class Store:
    """Finished trials by their key; a trial is written once, when it has finished, and survives a kill from then on.

    Args:
        path: the SQLite file; made, with its folder, if it is not there.

    Raises:
        DataError: the file is not a database, or can't be written.

    Example:
        >>> import tempfile
        >>> with Store(Path(tempfile.mkdtemp()) / "results.sqlite") as store:
        ...     trial = Trial("ijcnn1", "CE", {"lr": 0.1}, fold=0)
        ...     store.add(trial, Outcome("finished", seconds=2.5))
        ...     store.get(trial).seconds
        2.5
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60)
        except (OSError, sqlite3.OperationalError) as error:
            raise self._not_written(error) from error
        try:
            self._connection.execute(_TABLE)
        except sqlite3.OperationalError as error:  # a full disk, a lock: nothing is wrong with what is in the file
            self._connection.close()
            raise self._not_written(error) from error
        except sqlite3.DatabaseError as error:
            self._connection.close()
            msg = f"{path} is not a file of results ({error}). Choose another `--results` folder, or remove it."
            raise DataError(msg) from error

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Write a finished trial, in one transaction.

        Raises:
            DataError: the file can't be written, because the disk is full, for example.
        """
        row = (trial.key, trial.experiment, trial.method, trial.kind, json.dumps(asdict(outcome)))
        try:
            with self._connection:
                self._connection.execute(_INSERT, row)
        except sqlite3.OperationalError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: Exception) -> DataError:
        return DataError(
            f"Can't write results to {self._path} ({error}). What is there is kept: make room, or see to the folder's "
            "permissions, and give the same command again."
        )

    def get(self, trial: Trial) -> Outcome | None:
        """The outcome of a trial; ``None`` if it hasn't finished."""
        with closing(self._connection.execute("SELECT outcome FROM trials WHERE key = ?", (trial.key,))) as cursor:
            row = cursor.fetchone()
        return None if row is None else Outcome(**json.loads(row[0]))

    def __iter__(self) -> Iterator[tuple[str, Outcome]]:
        """All (key, outcome) in the order in which they finished."""
        with closing(self._connection.execute("SELECT key, outcome FROM trials ORDER BY rowid")) as cursor:
            for key, outcome in cursor.fetchall():
                yield key, Outcome(**json.loads(outcome))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
