"""Calls → their results as they come: in processes here, or on the workers of a Dask or Ray cluster."""

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ogd.checks import ArgumentError, check_name, check_whole
from ogd.files import temporary_folder
from ogd.lab.experiments import processes

Stream = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]

PACKAGES = {"dask": "distributed", "ray": "ray"}
PATIENCE = 20.0  # seconds in which a cluster must answer, and between two looks at whether it has workers left


@dataclass(frozen=True)
class Backend:
    """Where calls run: its name, the address of its cluster, and how many calls at once (None: one per core)."""

    name: str = "processes"
    address: str | None = None
    jobs: int | None = None

    def check(self) -> None:
        """Raise a ValueError for what cannot work, before any work is done."""
        check_name("backend", self.name, ["processes", *PACKAGES])
        check_whole(1, optional=("jobs",), jobs=self.jobs)
        if self.address is not None and self.name == "processes":
            raise ArgumentError("address", "is for backend 'dask' or 'ray'; 'processes' run on this machine")
        package = PACKAGES.get(self.name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ArgumentError("backend", f"{self.name} needs the package {package}: pip install 'ogd[{self.name}]'")

    @contextmanager
    def start(self) -> Iterator[Stream]:
        """Give a function that makes calls and yields each result as soon as it is there, in any order.

        Without an address, Dask and Ray start a cluster of this machine.
        """
        started = {"processes": _processes, "dask": _dask, "ray": _ray}[self.name]
        with started(self.address, self.jobs) as stream:
            yield stream


@contextmanager
def _processes(_: str | None, jobs: int | None) -> Iterator[Stream]:
    yield processes.stream(jobs or processes.cores())


@contextmanager
def _dask(address: str | None, jobs: int | None) -> Iterator[Stream]:
    from distributed import Client

    with ExitStack() as stack:
        try:
            where = address or stack.enter_context(_own_cluster(jobs or processes.cores()))
            client = stack.enter_context(Client(where, timeout=PATIENCE))
        except (OSError, ValueError) as error:
            raise ArgumentError("address", f"no Dask scheduler answers at {address!r}: {error}") from error
        threads = sum(client.nthreads().values())
        if not threads:
            raise ArgumentError("address", f"the Dask scheduler at {address!r} has no workers")
        with _warn_without_workers(client):
            yield _through_dask(client, jobs or threads)


@contextmanager
def _own_cluster(jobs: int) -> Iterator[Any]:
    """A cluster of this machine that only this process can talk to: whoever may talk to one runs code as its user."""
    import dask
    from distributed import LocalCluster, Security

    silent = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}  # it would open 8787 even without a dashboard
    local = {"host": "127.0.0.1", "protocol": "tls://", "dashboard_address": None, "scheduler_kwargs": silent}
    silence: dict[str, Any] = {f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")}
    with temporary_folder() as folder:
        with dask.config.set({**silence, "temporary-directory": str(folder)}):
            # a certificate of this session, in memory
            cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, security=Security.temporary(), **local)
        with cluster:
            yield cluster


@contextmanager
def _warn_without_workers(client: Any) -> Iterator[None]:
    """Warn when no worker is left: Dask would wait for another one in silence."""
    over = threading.Event()

    def look() -> None:
        warned = False
        while not over.wait(PATIENCE):
            try:
                none = not client.nthreads()
            except Exception:  # a scheduler that is gone ends the work, which says so
                return
            if none and not warned:
                print("ogd: the Dask cluster has no workers left; waiting for one", file=sys.stderr)
            warned = none

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _ray(address: str | None, jobs: int | None) -> Iterator[Stream]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    import ray

    local: dict[str, Any] = {"num_cpus": jobs or processes.cores(), "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **({} if address else local))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ArgumentError("address", f"no Ray cluster answers at {address!r}: {error}") from error
    try:
        yield _through_ray(jobs or int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def _through_dask(client: Any, jobs: int) -> Stream:
    """Dask's own futures: its backend for joblib works in this process where the cluster has one thread."""

    def stream(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        from distributed import as_completed

        futures = (client.submit(function, *call, pure=False) for call in calls)
        running = as_completed(list(islice(futures, jobs)))
        for done in running:
            for future in islice(futures, 1):
                running.add(future)
            yield done.result()

    return stream


def _through_ray(jobs: int) -> Stream:
    """Ray's own tasks: its backend for joblib returns nothing until everything has ended."""

    def stream(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        import ray

        remote, waiting = ray.remote(num_cpus=1)(function), list(calls)
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(remote.remote(*waiting.pop(0)))
            (done,), running = ray.wait(running, num_returns=1)
            yield ray.get(done)

    return stream
