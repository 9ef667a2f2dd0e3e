"""Runs a function in several gloo processes on this machine, without a Trainer."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

#: What the other ranks still get once one has failed; they mostly wait for it in a collective.
GRACE_SECONDS = 5.0


class RankError(NamedTuple):
    """Stands in the list of results for a rank that raised, died or did not finish."""

    text: str


def run_distributed(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60.0, return_errors: bool = False
) -> list[Any]:
    """Call ``fn(rank, world_size, *args)`` in ``world_size`` forked processes that share a gloo group.

    Forking takes a fraction of a second and lets ``fn`` be a closure; its results travel back pickled, by value.

    Args:
        fn: what every process calls.
        world_size: number of processes.
        args: further arguments, the same for all.
        timeout: seconds after which processes that still run are killed; also the group's own timeout.
        return_errors: put a :class:`RankError` in the list for each failed rank instead of raising.

    Returns:
        The ranks' results, in order.

    Raises:
        AssertionError: a rank failed; the message holds every failed rank's traceback.
    """
    context = multiprocessing.get_context("fork")
    results: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        workers = {}
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(sender, str(Path(folder, "store")), timeout, fn, rank, world_size, args)
            )
            process.start()
            sender.close()  # or the end of a dead child's pipe would never be seen
            workers[receiver] = (rank, process)
        processes = [process for _, process in workers.values()]
        try:
            _collect(workers, results, time.monotonic() + timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
    errors = {rank: result.text for rank, result in sorted(results.items()) if isinstance(result, RankError)}
    if errors and not return_errors:
        raise AssertionError("\n".join(f"rank {rank} of {world_size}: {text}" for rank, text in errors.items()))
    return [results[rank] for rank in range(world_size)]


def _collect(workers: dict[Any, tuple[int, Any]], results: dict[int, Any], deadline: float) -> None:
    while workers:
        ready: list[Any] = wait(list(workers), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            for rank, _ in workers.values():
                results[rank] = RankError("did not finish in time")
            return
        for receiver in ready:
            rank, process = workers.pop(receiver)
            try:
                results[rank] = pickle.loads(receiver.recv_bytes())  # noqa: S301  # from our own child
            except EOFError:
                process.join()
                results[rank] = RankError(f"died with exit code {process.exitcode}")
            if isinstance(results[rank], RankError):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)


def _work(
    sender: Any, store: str, timeout: float, fn: Callable[..., Any], rank: int, world_size: int, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)  # the parent's pool of threads did not survive the fork
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        # Processes find each other through a file: no port that another test run could take first.
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
        )
        result = fn(rank, world_size, *args)
        distributed.barrier()  # no rank leaves while another still talks to it
        payload = pickle.dumps(result)
    except BaseException:
        payload = pickle.dumps(RankError(traceback.format_exc()))
    sender.send_bytes(payload)
    sender.close()
    os._exit(0)  # skip the parent's exit handlers, pytest's among them
