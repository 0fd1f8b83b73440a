"""What counting costs the broker: plain numbers, against none, and against prometheus_client.

    request    what a connection does for each request: two clocks, a histogram, two sums of bytes
    share      what the writer does for each partition of a group commit
    group      what it does for each group
    scrape     one exposition of an idle broker with 1,000 partitions

The first three run in this process with nothing around them; the baseline is the same loop without
the counting. "of a produce" is against decoding, checking and answering one produce of 1 KiB, with
no socket and no disk: the true share is smaller.
"""

from __future__ import annotations

import asyncio
import timeit
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final

import typer
from prometheus_client import CollectorRegistry, Counter, Histogram

from scripts.figures import Figure, report
from seglog import Admin, embedded
from seglog.prometheus import exposition
from seglog.protocol import api
from seglog.protocol import messages as m
from seglog.protocol.batch import encode_batch
from seglog.protocol.header import check_produced
from seglog.server.metrics import DURATION_BOUNDS_S, Metrics, TopicTraffic

CALLS: Final = 20_000
REQUEST_AIM_NS: Final = 1_000
NOW_US: Final = 1_700_000_000_000_000


def nanoseconds(action: Callable[[], object], rounds: int) -> float:
    """Of one call, without the loop around it. The best round counts: others were disturbed."""
    own = min(timeit.repeat(lambda: None, number=CALLS, repeat=rounds))
    taken = min(timeit.repeat(action, number=CALLS, repeat=rounds))
    return (taken - own) / CALLS * 1e9


def plain_request(metrics: Metrics) -> Callable[[], None]:
    key = api.PRODUCE.key

    def count() -> None:
        begun = perf_counter()
        metrics.received_bytes += 1_000
        metrics.requests[key].observe(perf_counter() - begun - 0.0)
        metrics.sent_bytes += 30

    return count


def library_request(*, looked_up: bool) -> Callable[[], None]:
    """The same with prometheus_client; its children found each time, or kept by hand."""
    registry = CollectorRegistry()
    seconds = Histogram("s", "s", ["api"], buckets=DURATION_BOUNDS_S, registry=registry)
    received = Counter("r", "r", registry=registry)
    sent = Counter("t", "t", registry=registry)
    child = seconds.labels("produce")

    def count() -> None:
        begun = perf_counter()
        received.inc(1_000)
        (seconds.labels("produce") if looked_up else child).observe(perf_counter() - begun)
        sent.inc(30)

    return count


def produce() -> Callable[[], object]:
    batch = memoryview(encode_batch([b"x" * 1024], timestamps=NOW_US))
    frame = api.encode_request(
        api.PRODUCE, 1, m.ProduceRequest([m.ProduceBatch("orders", 0, batch)])
    )
    answer = m.ProduceResponse([m.ProduceResult(None, 1, NOW_US)])

    def work() -> object:
        _, request = api.decode_request(api.decode_envelope(frame))
        check_produced(request.batches[0].batch)
        return api.encode_response(1, answer)

    return work


async def scrape_seconds(partitions: int) -> tuple[float, int]:
    async with embedded() as running, Admin(running.bootstrap) as admin:
        await admin.create_topic("many", partitions)
        started = perf_counter()
        body, _ = await asyncio.to_thread(exposition, running.broker)
        return perf_counter() - started, len(body)


def main(
    rounds: Annotated[int, typer.Option(help="How often each is measured.")] = 25,
    save_as: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    metrics = Metrics()
    traffic = TopicTraffic(TopicTraffic())
    whole = nanoseconds(produce(), rounds)
    plain = nanoseconds(plain_request(metrics), rounds)
    kept = nanoseconds(library_request(looked_up=False), rounds)
    found = nanoseconds(library_request(looked_up=True), rounds)
    share = nanoseconds(lambda: traffic.appended(10, 1, 1_000), rounds)
    group = nanoseconds(lambda: metrics.group_committed(8, 4, 9_000, 0.001), rounds)
    seconds, length = asyncio.run(scrape_seconds(1_000))
    figures = [
        Figure.at_most("a request", "plain numbers", plain, REQUEST_AIM_NS, "ns", "over none"),
        Figure("a request", "of a produce, without socket and disk", plain / whole, "×"),
        Figure("a request", "prometheus_client, children kept", kept, "ns", note="over none"),
        Figure("a request", "prometheus_client, children looked up", found, "ns"),
        Figure("a request", "prometheus_client over plain", found / plain, "×"),
        Figure("the writer", "a partition's share of a group", share, "ns"),
        Figure("the writer", "a group", group, "ns"),
        Figure("a scrape", "1,000 partitions", seconds * 1000, "ms", note=f"{length} bytes"),
    ]
    report(figures, "scripts/bench metrics", save_as)
