"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from statistics import median

import psutil

from scripts.peers.results import Machine


def look_at(folder: Path) -> Machine:
    """This machine, and the disk that holds `folder`."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_gb=round(psutil.virtual_memory().total / 1e9, 1),
        kernel=f"{platform.system()} {platform.release()}",
        disk=_disk(folder),
        fdatasync_ms=round(_fdatasync_ms(folder), 3),
        load_average=round(os.getloadavg()[0], 1),
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _disk(folder: Path) -> str:
    """The file system that holds it: the mount point that is the longest beginning of its path."""
    place = folder.resolve()
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if place.is_relative_to(mount.mountpoint)
    ]
    if not mounts:
        return "unknown"
    mount = max(mounts, key=lambda each: len(each.mountpoint))
    return f"{mount.fstype} on {mount.device}"


def _fdatasync_ms(folder: Path, count: int = 50) -> float:
    """The median of appending 4 KiB to a reserved file and syncing it: what durability costs."""
    path = folder / "probe"
    block = os.urandom(4096)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, len(block) * count)
        os.fsync(descriptor)
        times = []
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(descriptor, block, number * len(block))
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(times)
