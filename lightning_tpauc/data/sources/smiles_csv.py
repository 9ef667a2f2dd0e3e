"""Reading a column of SMILES and columns of labels from a CSV file."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from lightning_tpauc.errors import DataError

__all__ = ("SMILESRow", "read_smiles")

_UNLABELLED = ("", "nan", "na", "none")


class SMILESRow(NamedTuple):
    """One row: its line in the file (from 2), SMILES and label (``None`` if not measured).

    With several columns of labels, ``label`` is a tuple of them; ``None`` if none of them was measured.
    """

    line: int
    smiles: str
    label: int | tuple[int | None, ...] | None


def read_smiles(path: Path, smiles_column: str, target_column: str | Sequence[str]) -> Iterator[SMILESRow]:
    r"""Read a CSV file with a header, plain or with a name that ends in ``.gz``.

    The separator is that of the header: commas, tabs or semicolons. Blank lines are skipped.

    Args:
        path: the file.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels: 0, 1 (also as ``1.0``), or nothing, ``nan``, ``NA``, ``None`` where
            there is no label. Several names are those of several tasks.

    Raises:
        DataError: the file is no such text, a column is missing or there twice, a quote is never closed, a row is
            longer than the header, or a label is something else; the message names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "few.csv"
        >>> _ = path.write_text("smiles,active\nCCO,1\nC,\n")
        >>> [tuple(row) for row in read_smiles(path, "smiles", "active")]
        [(2, 'CCO', 1), (3, 'C', None)]
    """
    try:
        with _open_text(path) as file:
            targets = [target_column] if isinstance(target_column, str) else list(target_column)
            needed = [("smiles_column", smiles_column), *(("target_column", target) for target in targets)]
            reader, lines = _csv_reader(file, path, needed)
            for row in _rows(reader, lines, path):
                # An unquoted comma in a cell moves the cells behind it into other columns.
                if any(row.get(None, ())):  # DictReader keeps surplus cells under None.
                    msg = (
                        f"Line {reader.line_num} of {path} has more columns than the header. Put text that holds the "
                        "separator in quotes."
                    )
                    raise DataError(msg)
                labels = tuple(_label(row[target], path, reader.line_num, target) for target in targets)
                measured = any(label is not None for label in labels)
                label = labels[0] if isinstance(target_column, str) else labels if measured else None
                yield SMILESRow(reader.line_num, (row[smiles_column] or "").strip(), label)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        msg = f"{path} can't be read as CSV in UTF-8, gzipped if its name ends in .gz: {error}."
        raise DataError(msg) from error


class _Lines:
    """The lines of a file, followed by a mark. If a quote is never closed, the mark becomes part of a cell."""

    MARK = "\x03end"  # \x03 means "end of text". Before Python 3.11, csv refuses NUL.

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.file, self._end())

    def _end(self) -> Iterator[str]:
        self.ended = True
        yield self.MARK


def _rows(reader: csv.DictReader[str], lines: _Lines, path: Path) -> Iterator[dict[str | Any, str | Any]]:
    """The rows up to the mark. Without it, all rows behind a quote that is never closed would vanish in one cell."""
    last = reader.line_num
    for row in reader:
        if lines.ended:
            if next(iter(row.values())) != lines.MARK:
                msg = f"A quote in {path} is opened after line {last} and never closed. Close it, or remove it."
                raise DataError(msg)
            return
        yield row
        last = reader.line_num


def _csv_reader(file: TextIO, path: Path, needed: list[tuple[str, str]]) -> tuple[csv.DictReader[str], _Lines]:
    """A reader with the separator of the header, which must hold the needed columns (by argument) once."""
    for separator in ",\t;,":  # The last attempt, commas again, is for the message.
        file.seek(0)
        lines = _Lines(file)
        reader = csv.DictReader(lines, delimiter=separator)
        header = reader.fieldnames or []
        reader.fieldnames = columns = [] if lines.ended else [column.strip() for column in header]
        if {column for _, column in needed} <= set(columns):
            break
    for argument, column in needed:
        if columns.count(column) != 1:
            found = "no column" if column not in columns else f"{columns.count(column)} columns"
            msg = f"{path} has {found} {column!r} (`{argument}`); it has {', '.join(map(repr, columns)) or 'none'}."
            raise DataError(msg)
    return reader, lines


def _open_text(path: Path) -> TextIO:
    # Spreadsheets write a byte order mark before the first column's name, which utf-8-sig skips.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _label(text: str | None, path: Path, line: int, column: str) -> int | None:
    text = (text or "").strip()
    if text.lower() in _UNLABELLED:
        return None
    try:
        value = math.nan if "_" in text else float(text)  # Python reads 0_1 as 1
    except ValueError:
        value = math.nan
    if value not in (0.0, 1.0):
        msg = f"Expected 0, 1 or nothing in column {column!r} of {path}, but line {line} has {text!r}."
        raise DataError(msg)
    return int(value)
