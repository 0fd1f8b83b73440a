"""The way to the broker, one a process and address: made when first used, kept between tasks.

Sources and sinks are sent to executors, so they hold options only; this is what they find there.
Spark keeps its Python workers for a while, and a worker that has been used before has its
connection already. A forked worker makes its own; one that went away is made anew by whoever asks.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ..client.cluster import Cluster
from ..client.loop_thread import LoopThread
from ..client.range_reader import open_cluster
from .options import SERVERS, Options
from .read_options import RETRY_TIMEOUT

T = TypeVar("T")


class Link(NamedTuple):
    """A cluster, the thread of its loop, and how long a broker that is away is waited for."""

    thread: LoopThread
    cluster: Cluster
    patience_s: float

    def ask(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Do something in the loop, again after what may pass; it must be right to do it twice."""
        return self.thread.call(
            self.cluster.retry(lambda: work(self.cluster), timeout_s=self.patience_s)
        )


_links: dict[tuple[int, str], tuple[LoopThread, Cluster]] = {}
_lock = threading.Lock()


def link(options: Options) -> Link:
    """This process's way to the broker of a query."""
    servers, patience_s = options[SERVERS], options[RETRY_TIMEOUT] / 1000
    key = (os.getpid(), servers)
    with _lock:
        found = _links.get(key)
        if found is None:
            thread = LoopThread.share()
            try:
                cluster = open_cluster(
                    thread, servers, patience_s=patience_s, client_name=client_name()
                )
            except BaseException:
                thread.release()
                raise
            found = _links[key] = (thread, cluster)
    return Link(*found, patience_s)


def client_name() -> str:
    """How this process shows in the broker: what a person needs to find it."""
    return f"spark on {socket.gethostname()}, process {os.getpid()}"
