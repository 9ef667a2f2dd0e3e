"""Files that are whole or not there, whoever else writes them and whenever the process is killed."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from zlib import crc32

#: A file that was not written to for so long (seconds) was left by a process that was killed.
_ABANDONED = 3600


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of ``path`` when it is complete and on the disk.

    It lies beside ``path`` under a name of its own, so that processes that write the same file do not write into each
    other's: the last one to finish stays. After an error nothing is left of it, and nothing has changed. What killed
    processes left is removed an hour later, by whoever writes the same file next. The folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name must not hold that of the target, or Lightning would take it for a checkpoint.
    prefix = f".{crc32(path.name.encode()):08x}"
    for left in path.parent.glob(f"{prefix}.*.saving"):
        with contextlib.suppress(OSError):  # another process was quicker
            if left.stat().st_mtime < time.time() - _ABANDONED:
                left.unlink()
    beside = path.with_name(f"{prefix}.{uuid.uuid4().hex}.saving")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
