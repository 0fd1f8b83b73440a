"""What a broker exposes, parsed by prometheus_client's own parser."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from seglog.prometheus import exposition
from seglog.server.app import Broker

Labels = frozenset[tuple[str, str]]


class Scrape:
    """One scrape: every sample by its name and labels, every family by its name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            self.helps[family.name] = family.documentation
            for sample in family.samples:
                place = sample.name, frozenset(sample.labels.items())
                assert place not in self.samples, f"{place} is there twice"
                self.samples[place] = sample.value

    @classmethod
    async def of(cls, broker: Broker) -> Self:
        """As a gateway asks: in a thread beside the loop."""
        body, content_type = await asyncio.to_thread(exposition, broker)
        assert content_type.startswith("text/plain; version=0.0.4")
        return cls(body.decode())

    def __getitem__(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.samples[name, frozenset()]

    def value(self, name: str, **labels: object) -> float:
        return self.samples[name, frozenset((key, str(text)) for key, text in labels.items())]

    def series(self, name: str, *labels: str) -> dict[Any, float]:
        """All samples of a metric, by the values of these labels (of one: its value itself)."""
        found: dict[Any, float] = {}
        for (sample, given), value in self.samples.items():
            if sample == name:
                values = tuple(dict(given)[label] for label in labels)
                found[values[0] if len(labels) == 1 else values] = value
        return found

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def label_values(self, label: str) -> set[str]:
        return {dict(given)[label] for _, given in self.samples if label in dict(given)}

    def counters(self) -> dict[tuple[str, Labels], float]:
        """Everything that may only grow."""
        growing = {name for name, kind in self.types.items() if kind in {"counter", "histogram"}}
        suffixes = ("_total", "_bucket", "_count", "_sum")
        return {
            (name, labels): value
            for (name, labels), value in self.samples.items()
            if any(name.removesuffix(suffix) in growing for suffix in suffixes)
        }
