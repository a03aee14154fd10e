"""Real processes joined by gloo: the same function on every rank, its results and errors brought back."""

import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 60.0  # seconds; whoever waits longer waits for a rank that never comes
PRELOADED = ["torch.distributed.fsdp", "torch.distributed.optim", "torch._dynamo", "ogd.memory"]


def on_ranks(
    folder: Path, work: Callable[..., Any], *args: Any, ranks: int = 2, patience: float = PATIENCE
) -> list[Any]:
    """What `work(*args)` returned on each rank; its error where it raised one, as text."""
    context = get_context("forkserver")  # imports torch once, and then a process takes milliseconds
    context.set_forkserver_preload(PRELOADED)
    processes = [context.Process(target=_enter, args=(folder, rank, ranks, work, args)) for rank in range(ranks)]
    for process in processes:
        process.start()
    end = time.monotonic() + patience
    for process in processes:
        process.join(max(end - time.monotonic(), 0))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in late:
        processes[rank].kill()
        processes[rank].join()
    assert not late, f"rank {late} waits for ever"
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
    (folder / "meeting").unlink(missing_ok=True)
    return results


def results(answers: list[Any]) -> list[Any]:
    """The answers, none of which may be an error."""
    for answer in answers:
        assert not isinstance(answer, str), answer
    return answers


def _enter(folder: Path, rank: int, ranks: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=timedelta(seconds=PATIENCE)
    )
    try:
        result = work(*args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    torch.save(result, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
