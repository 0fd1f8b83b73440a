"""How a process that serves is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal


def stop_on_signals() -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT; a second one exits at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
