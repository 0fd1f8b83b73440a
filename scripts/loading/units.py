"""Numbers as people read them."""

from __future__ import annotations


def microseconds_text(microseconds: float) -> str:
    """`340 µs`, `12.3 ms`, `1.25 s`."""
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{three_digits(microseconds / 1000)} ms"
    return f"{three_digits(microseconds / 1_000_000)} s"


def bytes_text(size: float) -> str:
    """`512 B`, `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{three_digits(size)} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{three_digits(size)} TB"


def count_text(count: float) -> str:
    """`1,234,567`, or three digits of what is small."""
    return f"{count:,.0f}" if count >= 100 else three_digits(count)


def three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
