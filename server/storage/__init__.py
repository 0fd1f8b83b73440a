"""The log engine: segments, indexes, recovery, retention, compaction. No asyncio, no sockets."""
