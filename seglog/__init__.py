"""A durable, partitioned, append-only log with a broker, for Python and Spark."""

__version__ = "0.1.0"
