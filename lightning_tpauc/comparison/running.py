"""What is left to run, a bar that shows it, and several trainings side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from lightning_tpauc.comparison.store import Keyed, Store
from lightning_tpauc.errors import ArgumentError, DataError

Cell = TypeVar("Cell", bound=Keyed)

#: Seconds between two looks at how far the trainings are.
_LOOK = 0.2


def missing_cells(cells: Iterable[Cell], store: Store[Any]) -> list[Cell]:
    """The cells that the store lacks."""
    return [cell for cell in cells if store.get(cell) is None]


def progress_bar(title: str, done: int, total: int, **options: Any) -> tqdm[Any]:
    """A bar that says how long the rest will take, by the speed of all that has been done in this run.

    Cells take seconds to hours, so the speed of the last ones says little.
    """
    return tqdm(desc=title, initial=done, total=total, smoothing=0, **options)


def check_processes(processes: int, accelerator: str) -> None:
    """Raise :class:`ArgumentError` unless this number of processes can train side by side.

    Example:
        >>> check_processes(1, "cuda")
    """
    if processes == 1:
        return
    if "fork" not in multiprocessing.get_all_start_methods():
        msg = f"`processes={processes}` forks this process, which the system can't. Set `processes=1`."
        raise ArgumentError(msg)
    if accelerator != "cpu":
        msg = (
            f"`processes={processes}` trains on CPUs, one for each training, but the Trainer takes {accelerator}. "
            "Set `accelerator='cpu'`, or `processes=1`."
        )
        raise ArgumentError(msg)


def run_side_by_side(
    work: Sequence[Callable[[Callable[[float], object]], object]], processes: int, show: Callable[[float], object]
) -> None:
    """Run functions in forks of this process, ``processes`` at a time, each in one thread.

    Processes that outlive this one finish what they have begun.

    Args:
        work: functions to run. Each is given a function to call with the share of its work that it has just done.
        processes: how many at a time.
        show: called every now and then with how much of all is done, as a number of functions.

    Raises:
        DataError: if a process was killed.
        Exception: the first one that a function raised; what else runs is ended.
    """
    context = multiprocessing.get_context("fork")
    done = context.Array("d", len(work), lock=False)
    running: dict[Any, tuple[int, BaseProcess, Connection]] = {}
    left = list(reversed(range(len(work))))
    try:
        while left or running:
            while left and len(running) < processes:
                number = left.pop()
                receiver, sender = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_do, args=(work[number], number, done, sender))
                process.start()
                sender.close()
                running[receiver] = number, process, receiver
            # wait for the pipes and not for the processes: one with a long message blocks until the message is read
            for heard in wait(list(running), timeout=_LOOK):
                number, finished, receiver = running.pop(heard)
                _raise_what_happened(finished, receiver)
                done[number] = 1.0
            show(sum(done))
    finally:
        for _, ended, _ in running.values():
            ended.terminate()
        for _, ended, _ in running.values():
            ended.join()


def _do(work: Callable[[Callable[[float], object]], object], number: int, done: Any, sender: Connection) -> None:
    torch.set_num_threads(1)  # the parent's pool of threads does not survive the fork

    def advance(share: float) -> None:
        done[number] += share

    try:
        work(advance)
    except BaseException as error:
        sender.send(f"{type(error).__name__}: {error}")
        sender.send(error)
        raise SystemExit(1) from None


def _raise_what_happened(process: BaseProcess, receiver: Connection) -> None:
    try:
        words = receiver.recv()
    except EOFError:  # nothing was raised
        process.join()
        if process.exitcode:
            msg = (
                f"A training was killed (exit code {process.exitcode}), perhaps for want of memory. What has finished "
                "is kept: give the same command again, with fewer `processes`."
            )
            raise DataError(msg) from None
        return
    try:
        error: BaseException = receiver.recv()
    except Exception:  # an error that can't be sent, such as one that needs other arguments
        error = RuntimeError(words)
    process.join()
    raise error
