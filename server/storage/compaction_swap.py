"""Putting a compacted segment in the place of the ones it was made from, so that a crash is
harmless.

    1  write START-END.cleaned, sync it        crash: the next start removes it; the old segments
    stand
    2  rename it to START-END.swap, sync       the decision: from here on the new one counts
    3  remove the old segments, sync           crash: the next start goes on with 3
    4  rename it to START.log, sync            crash: the next start goes on with 4

At no point are old and new both taken for the log: while there is a `.swap`, whatever lies in its
range is old. END is the first offset behind the range.
"""

from __future__ import annotations

import os

from .filesystem import FileSystem
from .names import CLEANED, LOG, PRODUCERS, SWAP, file_name, parse_file_name, range_name


def decide_swap(fs: FileSystem, folder: str, start: int, end: int) -> None:
    """Step 2, for a `.cleaned` file that is synced."""
    fs.rename(
        os.path.join(folder, range_name(start, end, CLEANED)),
        os.path.join(folder, range_name(start, end, SWAP)),
    )
    fs.sync_folder(folder)


def finish_swap(fs: FileSystem, folder: str, start: int, end: int) -> None:
    """Steps 3 and 4, from wherever a crash may have left them."""
    for name in fs.list_folder(folder):
        parsed = parse_file_name(name)
        if parsed and start <= parsed[0] < end and parsed[1] != PRODUCERS:
            fs.remove(os.path.join(folder, name))
    fs.sync_folder(folder)
    fs.rename(
        os.path.join(folder, range_name(start, end, SWAP)),
        os.path.join(folder, file_name(start, LOG)),
    )
    fs.sync_folder(folder)
