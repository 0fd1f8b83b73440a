"""Where `scripts/bench peers --install` puts what no package of the system brings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seglog-bench"
