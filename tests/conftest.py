"""How much hypothesis tries: SEGLOG_HYPOTHESIS_PROFILE=thorough for a long search; and what a
process starts with that would change what tests find, and who runs which tests.
"""

import os
import signal

import pytest
from hypothesis import settings

# Not derandomized: each run looks somewhere new, and a failure prints the blob that replays it.
settings.register_profile("ci", derandomize=False, print_blob=True, deadline=None)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=5_000)
settings.load_profile(os.environ.get("SEGLOG_HYPOTHESIS_PROFILE", "ci"))

# A shell that runs a script starts what it puts in the background with Ctrl-C ignored, and so would
# start every command whose end by Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a group of tests (`xdist_group`) in one process: pytest-xdist 3.8 tells of it by a name
    of the test that pytest reads no more since 9.2, and all groups were dealt out as if single."""
    for item in items:
        named = getattr(item, "_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = item.id.parse(named)
