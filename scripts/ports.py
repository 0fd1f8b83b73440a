"""Ports that stay ours while nobody listens on them.

A port that was found free and let go may be given to another process before it is used, or while
the broker that had it is away. One that is bound, and not listened on, is given to nobody who takes
any; who names it may listen beside us, as brokers do (SO_REUSEADDR). Until then it refuses.
"""

from __future__ import annotations

import atexit
import socket


def kept_port() -> int:
    """A port of the loopback that is ours as long as this process lives."""
    kept = socket.socket()
    atexit.register(kept.close)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return int(kept.getsockname()[1])
