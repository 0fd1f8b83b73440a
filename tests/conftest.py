"""How much hypothesis tries: SEGLOG_HYPOTHESIS_PROFILE=thorough for a long search."""

import os

from hypothesis import settings

# Not derandomized: each run looks somewhere new, and a failure prints the blob that replays it.
settings.register_profile("ci", derandomize=False, print_blob=True, deadline=None)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=5_000)
settings.load_profile(os.environ.get("SEGLOG_HYPOTHESIS_PROFILE", "ci"))
