"""A result as one HTML file: figures first, then charts, then everything else. It loads nothing,
runs nothing, and follows the reader's choice of light or dark.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final

import msgspec

from scripts.loading.charts import all_charts
from scripts.loading.histogram import LatencySummary
from scripts.loading.result import Result, Side
from scripts.loading.units import bytes_text, count_text, microseconds_text

_CSS: Final = """
:root { color-scheme: light dark; --font: system-ui, "Segoe UI", Roboto, sans-serif;
  --page: #f6f7f9; --card: #ffffff; --ink: #1f2933; --soft: #5b6875; --faint: #d4dae1;
  --series-1: #2563eb; --series-2: #e07a1f; --series-3: #9b4dca; --good: #15803d; --bad: #c01c28;
  --warn: #9a5b00; --warn-page: #fff6e5; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181d; --card: #1c2229; --ink: #e4e9ef; --soft: #9aa7b4; --faint: #37414c;
  --series-1: #6ea8fe; --series-2: #f6a658; --series-3: #cf9df0; --good: #4ade80; --bad: #ff7b84;
  --warn: #f5c26b; --warn-page: #2b2418; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 var(--font); }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 0 0 2px; }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(235px, 1fr)); gap: 12px;
  margin: 24px 0 12px; }
.card { background: var(--card); border: 1px solid var(--faint); border-radius: 10px;
  padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { color: var(--soft); font-size: 13px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.note { background: var(--warn-page); color: var(--warn); border-color: var(--warn);
  margin: 12px 0; padding: 10px 16px; }
.note ul { margin: 0; padding-left: 18px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr));
  gap: 12px; }
.wide { grid-column: 1 / -1; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; margin-top: 6px; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr));
  gap: 12px; margin-top: 12px; align-items: start; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: 14px; }
td, th { padding: 4px 0; border-top: 1px solid var(--faint); text-align: right;
  font-weight: normal; vertical-align: top; white-space: nowrap; }
tr:first-child > * { border-top: 0; }
td:first-child, th:first-child { text-align: left; color: var(--soft); padding-right: 12px;
  white-space: normal; }
thead th { color: var(--soft); }
.listed { margin-top: 12px; }
dl { columns: 3 260px; column-gap: 36px; margin: 6px 0 0; font-size: 14px;
  font-variant-numeric: tabular-nums; }
dl div { display: flex; justify-content: space-between; gap: 12px; padding: 3px 0;
  border-top: 1px solid var(--faint); break-inside: avoid; }
dt { color: var(--soft); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
"""


def make_report(result: Result) -> str:
    charts = "".join(
        f'<figure class="card{" wide" * chart.is_wide}"><h2>{escape(chart.title)}</h2>'
        f"<figcaption>{escape(chart.note)}</figcaption>{_own_names(chart.svg, number)}</figure>"
        for number, chart in enumerate(all_charts(result))
    )
    described = result.workload.described()
    subtitle = f"{described}. " if result.name != described else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(result.name)} – Seglog load</title>
<style>{_CSS}</style>
</head>
<body><main>
<h1>{escape(result.name)}</h1>
<div class="soft">{escape(subtitle)}{escape(_when(result))}</div>
<div class="tiles">{_tiles(result)}</div>
{_notes(result)}
<div class="charts">{charts}</div>
<div class="tables">{_tables(result)}</div>
{_listed("Workload", result.workload)}
{_listed("Machine", result.machine)}
</main></body>
</html>
"""


def _own_names(svg: str, number: int) -> str:
    """Names within a picture, made the picture's own: all are in one page."""
    svg = re.sub(r'\bid="', f'id="c{number}-', svg)
    svg = svg.replace("url(#", f"url(#c{number}-")
    return re.sub(r'((?:xlink:)?href)="#', rf'\1="#c{number}-', svg)


def _when(result: Result) -> str:
    ended = {"time": "", "count": "", "stop": ", interrupted"}[result.ended_by]
    machine = result.machine
    return (
        f"{result.started_at.replace('T', ' ')}, {result.seconds:.1f} s{ended}. "
        f"{machine.processor}, {machine.cores} cores, {machine.python}, Seglog {machine.seglog}."
    )


def _tiles(result: Result) -> str:
    tiles: list[tuple[str, str, str]] = []
    for name, side in (("produced", result.produce), ("consumed", result.consume)):
        if side is not None:
            speed = f"records/s {name}, {side.bytes_per_second / 1e6:,.1f} MB/s"
            tiles.append((count_text(side.records_per_second), speed, ""))
    side = result.consume if result.workload.kind == "end-to-end" else result.produce
    if side is not None and side.latency is not None:
        what = "end to end" if side is result.consume else "to the acknowledgement"
        tiles += [
            (microseconds_text(side.latency.p50_us), f"p50 {what}", ""),
            (microseconds_text(side.latency.p99_us), f"p99 {what}", ""),
            (microseconds_text(side.latency.p999_us), f"p99.9 {what}", ""),
        ]
    if result.broker is not None:
        tiles.append((f"{result.broker.cpu_percent:.0f} %", "of a core, broker", ""))
        tiles.append((bytes_text(result.broker.memory_peak_bytes), "memory, broker", ""))
    if result.check is not None:
        check = result.check
        if check.is_clean:
            tiles.append(("✓ none", "lost, doubled, reordered, damaged", "good"))
        else:
            tiles.append(("✗ faults", check.described(), "bad"))
    return "".join(
        f'<div class="card tile"><b class="{style}">{escape(value)}</b>'
        f"<span>{escape(label)}</span></div>"
        for value, label, style in tiles
    )


def _notes(result: Result) -> str:
    notes = [*result.warnings]
    if result.check is not None:
        notes += [f"{finding.fault}: {finding.described()}" for finding in result.check.findings]
    if not notes:
        return ""
    return (
        f'<div class="card note"><ul>{"".join(f"<li>{escape(n)}</li>" for n in notes)}</ul></div>'
    )


# --- tables --------------------------------------------------------------------------------------


def _tables(result: Result) -> str:
    sides = [("produced", result.produce), ("consumed", result.consume)]
    found = [(name, side) for name, side in sides if side is not None]
    tables = [_latency_table(found), _counts_table(result, found)]
    if result.check is not None:
        rows = msgspec.to_builtins(result.check)
        rows.pop("findings")
        tables.append(_table("Check", [(name, f"{n:,}") for name, n in rows.items()]))
    return "".join(tables)


def _listed(title: str, struct: msgspec.Struct) -> str:
    """All fields of something with many, in as many columns as there is room for."""
    rows = "".join(
        f"<div><dt>{escape(_words(name))}</dt><dd>{escape(_value(value))}</dd></div>"
        for name, value in msgspec.to_builtins(struct).items()
    )
    return f'<section class="card listed"><h2>{escape(title)}</h2><dl>{rows}</dl></section>'


def _latency_table(sides: list[tuple[str, Side]]) -> str:
    columns: list[tuple[str, LatencySummary]] = []
    for name, side in sides:
        if side.latency is not None:
            columns.append((name, side.latency))
        if side.lateness is not None:
            columns.append(("sent late", side.lateness))
    if not columns:
        return ""
    picks = [("p50", "p50_us"), ("p75", "p75_us"), ("p90", "p90_us"), ("p95", "p95_us"),
             ("p99", "p99_us"), ("p99.9", "p999_us"), ("p99.99", "p9999_us"), ("max", "max_us"),
             ("mean", "mean_us")]  # fmt: skip
    rows = [
        (label, *(microseconds_text(getattr(summary, pick)) for _, summary in columns))
        for label, pick in picks
    ]
    rows.append(("measured", *(f"{summary.count:,}" for _, summary in columns)))
    return _table("Latency", rows, ["", *(name for name, _ in columns)])


def _counts_table(result: Result, sides: list[tuple[str, Side]]) -> str:
    rows: list[tuple[str, ...]] = []
    for name, side in sides:
        rows += [
            (f"{name}, records", f"{side.records:,}"),
            (f"{name}, seconds", f"{side.seconds:.2f}"),
            (f"{name}, CPU of each process", ", ".join(
                f"{percent:.0f} %" for percent in side.processes_cpu_percent)),
        ]  # fmt: skip
        rows += [(f"{name}, {error}", f"{count:,}") for error, count in side.failed.items()]
    rows.append(("a record, in the mean", bytes_text(result.record_bytes)))
    if result.broker is not None:
        b = result.broker
        rows += [
            ("broker, CPU time", f"{b.cpu_seconds:.2f} s"),
            ("broker, written", bytes_text(b.written_bytes)),
            ("broker, on disk", bytes_text(b.disk_bytes) if b.disk_bytes >= 0 else "not known"),
        ]
        rows += [("broker, killed", f"{b.kills} times")] * bool(b.kills)
    return _table("Counts", rows)


def _table(title: str, rows: list[tuple[str, ...]], headings: list[str] | None = None) -> str:
    head = ""
    if headings is not None:
        head = f"<thead><tr>{''.join(f'<th>{escape(h)}</th>' for h in headings)}</tr></thead>"
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<section class="card"><h2>{escape(title)}</h2><table>{head}{body}</table></section>'


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.10g}"
    return f"{value:,}" if isinstance(value, int) else f"{value}"
