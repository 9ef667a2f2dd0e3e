"""Files that data modules can fetch: where they come from, and what they must hold."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from torch.hub import download_url_to_file

from lightning_tpauc.errors import ArgumentError, DataError

__all__ = ("SOURCES", "Source", "download_missing")


class Source(NamedTuple):
    """Where a file comes from.

    Attributes:
        url: its address.
        sha256: 64 hex digits; ``None`` if unknown, and what arrives is then taken as it is.
    """

    url: str
    sha256: str | None


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"

#: The files that :func:`download_missing` knows, by name. For HIGGS and SUSY no hash is known that could be relied on;
#: their reader refuses what was cut off or isn't xz.
SOURCES = {
    "ijcnn1.bz2": Source(f"{_LIBSVM}/ijcnn1.bz2", "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3"),
    "ijcnn1.t.bz2": Source(
        f"{_LIBSVM}/ijcnn1.t.bz2", "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"
    ),
    "HIGGS.xz": Source(f"{_LIBSVM}/HIGGS.xz", None),
    "SUSY.xz": Source(f"{_LIBSVM}/SUSY.xz", None),
    "tox21.csv.gz": Source(
        f"{_DEEPCHEM}/tox21.csv.gz", "48b34e4e59a2bae6f95734cd206c1869ab355f50a5e50bb7371a21f861d5e297"
    ),
    "muv.csv.gz": Source(f"{_DEEPCHEM}/muv.csv.gz", "93c8b4a37c5996c76e57d5f3f065fb8b7cf1c19067011eff2293fd2a94ce274a"),
}


def download_missing(path: Path) -> None:
    """Fetch a file of :data:`SOURCES` unless it is there; a bar shows the progress.

    The file appears under its name when it is complete and its hash is right; a broken download leaves nothing behind.
    What is there already is not looked at.

    Args:
        path: where the file belongs. Its name says which one it is, its folder is made if need be.

    Raises:
        ArgumentError: no source is known for a file of this name.
        DataError: it can't be fetched or written, or is not the file that is expected.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "there.txt"
        >>> _ = path.write_text("mine")
        >>> download_missing(path)
        >>> path.read_text()
        'mine'
    """
    if path.exists():
        return
    if path.name not in SOURCES:
        msg = (
            f"Expected a file that can be downloaded ({', '.join(SOURCES)}), but got {path.name!r}, and {path} does "
            "not exist. Save the file there, or correct its name or `--data.root`."
        )
        raise ArgumentError(msg)
    url, sha256 = SOURCES[path.name]
    by_hand = f"Or fetch {url} yourself and save it as {path.absolute()}."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(path), hash_prefix=sha256, progress=True)
    except (OSError, HTTPException) as error:  # urllib's errors are OSErrors, too
        msg = f"{path} could not be downloaded: {error}. Try again when the network is there. {by_hand}"
        raise DataError(msg) from error
    except RuntimeError as error:
        msg = f"{url} sent another file than expected, which was thrown away: {error}. Try again later. {by_hand}"
        raise DataError(msg) from error
