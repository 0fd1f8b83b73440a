"""The version that a broker tells its clients."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("seglog")
except PackageNotFoundError:  # run from a tree that was never installed
    VERSION = "unknown"
