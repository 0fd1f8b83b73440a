"""The charts of a report, as SVG that takes its colours from the page: light and dark both read
well, text stays text, and nothing is loaded from anywhere.

Matplotlib draws with marker colours, which are replaced by the page's CSS variables afterwards.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scripts.loading.histogram import Latencies
from scripts.loading.result import Result
from scripts.loading.units import bytes_text

#: Colours that nothing else has, and what stands for them in the page.
INK: Final = "#010101"
FAINT: Final = "#020202"
SERIES: Final = ("#030301", "#030302", "#030303")
VARIABLES: Final = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    SERIES[0]: "var(--series-1)",
    SERIES[1]: "var(--series-2)",
    SERIES[2]: "var(--series-3)",
}
WIDTH_IN: Final = 7.2
WIDE_IN: Final = 15.0
HEIGHT_IN: Final = 2.9
#: A second that lacks less than this is a whole one.
WHOLE_S: Final = 0.25
#: Seconds shown at most: of longer runs, each point is the mean (or worst) of several.
MAX_POINTS: Final = 600
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text as text: it is searched, copied, and has the page's font
    "svg.hashsalt": "seglog",  # the same picture has the same bytes
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


class Chart(NamedTuple):
    """A title, a picture, and what to see in it."""

    title: str
    svg: str
    note: str
    is_wide: bool = False


class Line(NamedTuple):
    label: str
    values: Sequence[float]
    colour: str


def all_charts(result: Result) -> list[Chart]:
    """Those that the result has figures for, two side by side; the first is wide where they are
    odd in number."""
    with mpl.rc_context(_STYLE):
        others = [latency_over_time(result), latency_by_percentile(result), *broker_charts(result)]
        found = [chart for chart in others if chart is not None]
        first = throughput(result, is_wide=len(found) % 2 == 0)
    return found if first is None else [first, *found]


def throughput(result: Result, *, is_wide: bool = False) -> Chart | None:
    # A last second that is cut off would look like a drop.
    whole = [s for s in result.timeline if s.second + 1 <= result.seconds + WHOLE_S]
    seconds = whole or result.timeline
    if not seconds:
        return None
    lines = []
    if result.produce is not None:
        lines.append(Line("produced", [s.produced for s in seconds], SERIES[0]))
    if result.consume is not None:
        lines.append(Line("consumed", [s.consumed for s in seconds], SERIES[1]))
    places = [s.second + 1 for s in seconds]
    svg = _over_time(places, lines, lambda value, _: _count(value), fill=True, is_wide=is_wide)
    note = "Records of each whole second."
    if result.workload.rate:
        note += f" {result.workload.rate:,.0f} a second were due."
    return Chart("Records per second", svg, note, is_wide)


def latency_over_time(result: Result) -> Chart | None:
    is_end_to_end = result.workload.kind == "end-to-end"
    prefix = "end_to_end" if is_end_to_end else "produce"
    shown = [s for s in result.timeline if getattr(s, f"{prefix}_p50_us")]
    if not shown:
        return None
    names = (("max", "max_us"), ("p99", "p99_us"), ("p50", "p50_us"))
    lines = [
        Line(label, [getattr(s, f"{prefix}_{field}") for s in shown], SERIES[number])
        for number, (label, field) in zip((2, 1, 0), names, strict=True)
    ]
    svg = _over_time([s.second + 1 for s in shown], lines, log=True)
    what = "From when a record was due to its reader" if is_end_to_end else "To the acknowledgement"
    return Chart("Latency over time", svg, f"{what}, of what ended in each second.")


def latency_by_percentile(result: Result) -> Chart | None:
    """As HdrHistogram draws it: each step to the right is ten times rarer."""
    found = [
        (label, side.latency, SERIES[number])
        for number, (label, side) in enumerate(
            (("acknowledged", result.produce), ("read, end to end", result.consume))
        )
        if side is not None and side.latency is not None
    ]
    if not found:
        return None
    figure, axes = _figure()
    most = max(summary.count for _, summary, _ in found)
    decades = max(1, min(6, len(str(most)) - 1))
    steps = [n / 20 for n in range(20 * decades + 1)]
    for label, summary, colour in found:
        latencies = Latencies.decode(summary.histogram)
        values = latencies.percentiles_us(100 * (1 - 10**-step) for step in steps)
        axes.plot(steps, values, color=colour, label=label)
    _log_scale(axes)
    labels = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"]
    axes.set_xticks(range(decades + 1), labels[: decades + 1])
    axes.set_xlim(0, decades)
    _legend(axes, len(found))
    note = "So many percent took this long or less; each step is ten times rarer."
    return Chart("Latency by percentile", _svg(figure), note)


def broker_charts(result: Result) -> list[Chart]:
    if result.broker is None or not result.broker.samples:
        return []
    samples = result.broker.samples
    places = [sample.second for sample in samples]
    cpu = _over_time(
        places,
        [Line("CPU", [s.cpu_percent for s in samples], SERIES[0])],
        lambda value, _: f"{value:g} %",
        fill=True,
    )
    lines = [
        Line("memory", [s.memory_bytes for s in samples], SERIES[0]),
        Line("written", [s.written_bytes for s in samples], SERIES[1]),
    ]
    if samples[-1].disk_bytes >= 0:
        lines.append(Line("on disk", [s.disk_bytes for s in samples], SERIES[2]))
    space = _over_time(places, lines, lambda value, _: bytes_text(value).replace(".0 ", " "))
    return [
        Chart("Broker: CPU", cpu, "Of one core; the broker uses more than one for file work."),
        Chart(
            "Broker: memory and disk", space, "Memory without the mapped log; disk with what is "
            "allocated ahead.",
        ),
    ]  # fmt: skip


# --- drawing -------------------------------------------------------------------------------------


def _figure(width_in: float = WIDTH_IN) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width_in, HEIGHT_IN), layout="constrained")
    return figure, figure.add_subplot()


def _over_time(
    places: Sequence[float],
    lines: Sequence[Line],
    text: Any = None,
    *,
    log: bool = False,
    fill: bool = False,
    is_wide: bool = False,
) -> str:
    figure, axes = _figure(WIDE_IN if is_wide else WIDTH_IN)
    step = -(-len(places) // MAX_POINTS)
    at = list(places[::step])
    for line in lines:
        groups = [line.values[n : n + step] for n in range(0, len(line.values), step)]
        values = [max(group) if log else sum(group) / len(group) for group in groups]
        axes.plot(
            at, values, color=line.colour, label=line.label, marker="o" if len(at) < 3 else None
        )
        if fill:
            axes.fill_between(at, values, color=line.colour, alpha=0.12, linewidth=0)
    if log:
        _log_scale(axes)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(text))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("seconds")
    axes.margins(x=0.01)
    if len(lines) > 1:
        _legend(axes, len(lines))
    return _svg(figure)


def _legend(axes: Any, columns: int) -> None:
    """Above the picture, where it covers nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def _log_scale(axes: Any) -> None:
    """Of microseconds, with names at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    # The size is the page's; the font too.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", text)


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds:g} µs"


def _count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
