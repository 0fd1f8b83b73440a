"""What a broker counts, in the text that Prometheus reads: the body of `/metrics`.

`prometheus_client` (the extra `http`) writes the text, and adds the figures of the process: CPU,
memory, open files, garbage collection. The broker itself knows nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from .server.metrics import Buckets
from .server.metrics_table import METRICS, Metric
from .server.scrape import Row

if TYPE_CHECKING:
    from .server.app import Broker

SHARE: Final = 0.4  # of one thread's time goes into a scrape: the loop keeps the interpreter
STRETCH_S: Final = 0.002  # so long it works at a time
_SAMPLES_A_PAUSE: Final = 100


class Pacer:
    """Called often by long work beside the loop: sleeps when it had its share of the time."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def __call__(self) -> None:
        worked = self._clock() - self._began
        if worked > STRETCH_S:
            self._sleep(worked * (1 - SHARE) / SHARE)
            self._began = self._clock()


class _PacedSamples(list[Sample]):
    """Samples that are given out at a pace: writing ten thousand of them takes its time too."""

    def __init__(self, samples: Iterable[Sample], pause: Callable[[], None]) -> None:
        super().__init__(samples)
        self._pause = pause

    def __iter__(self) -> Iterator[Sample]:
        for number, sample in enumerate(super().__iter__()):
            if number % _SAMPLES_A_PAUSE == 0:
                self._pause()
            yield sample


class BrokerCollector(Collector):
    """One broker's metrics for `prometheus_client`."""

    def __init__(self, broker: Broker) -> None:
        self._scraper = broker.scraper

    def collect(self) -> Iterator[Family]:
        pause = _pacer()
        rows = self._scraper.scrape(pause)
        for metric in METRICS:
            family = _family(metric, rows[metric])
            family.samples = _PacedSamples(family.samples, pause)
            yield family


def exposition(broker: Broker) -> tuple[bytes, str]:
    """The body of /metrics, and its content type.

    For a thread beside the broker's loop: `await asyncio.to_thread(exposition, broker)`. In the
    loop itself it works too, but nothing else does meanwhile.
    """
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _pacer() -> Callable[[], None]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return Pacer()
    return lambda: None  # in a loop, sleeping would only keep it from its work for longer


def _family(metric: Metric, rows: Iterable[Row]) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in rows:
            assert isinstance(value, Buckets)
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            counts = zip(bounds, value.cumulative, strict=True)
            histogram.add_metric(labels, list(counts), value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in rows:
        assert not isinstance(value, Buckets)
        family.add_metric(labels, value)
    return family
