"""The one seam between the log engine and the disk.

Everything that changes or reads a file goes through `FileSystem` and the `File` it opens; nothing
else in storage calls `os`. Tests put a class of their own here, which tears writes, fills the disk,
fails an fsync or cuts the power. So the promises are the disk's own, and no more:

- bytes written are safe after `File.sync`; a name (created, renamed, removed) is safe after
  `sync_folder` of the folder that holds it;
- `rename` replaces the target in one step.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...protocol.errors import FolderLocked, StorageError, StorageFull

Buffer = bytes | bytearray | memoryview

MAX_BUFFERS_PER_WRITE: Final = 1024  # IOV_MAX on Linux
TEMPORARY_SUFFIX: Final = ".tmp"

# Linux tells whether a read would wait; macOS needs a call of its own to reach the disk's platters.
_RWF_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def storage_error(error: OSError, doing: str) -> StorageFull | StorageError:
    """An `OSError` in our own words: what is used up comes back, and may be tried again; anything
    else is not.
    """
    reason = error.strerror or str(error)
    if error.errno in _NO_DESCRIPTOR:
        return StorageFull(f"no file could be opened while {doing}: {reason} (see ulimit -n)")
    if error.errno in _FULL:
        return StorageFull(f"no space left while {doing}: {reason}")
    return StorageError(f"the disk refused while {doing}: {reason}")


class File:
    """One open file. Positions are explicit: no call depends on another one's."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at `position` in as few calls as they take; returns the bytes."""
        total = 0
        for first in range(0, len(buffers), MAX_BUFFERS_PER_WRITE):
            pending = list(buffers[first : first + MAX_BUFFERS_PER_WRITE])
            while pending:
                written = self._write_once(pending, position + total)
                total += written
                pending = _after(pending, written)
        return total

    def _write_once(self, buffers: list[Buffer], position: int) -> int:
        return os.pwritev(self.descriptor, buffers, position)

    def read(self, length: int, position: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        parts = []
        while length > 0:
            part = os.pread(self.descriptor, length, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            length -= len(part)
        return b"".join(parts)

    def is_cached(self, length: int, position: int) -> bool:
        """Whether the range is in memory, as far as one look tells: touching it will not wait."""
        if _RWF_NOWAIT is None:
            return False
        probe = bytearray(1)
        last = max(position, position + length - 1)
        try:
            return all(
                os.preadv(self.descriptor, [probe], at, _RWF_NOWAIT) == 1
                for at in (position, (position + last) // 2, last)
            )
        except BlockingIOError:
            return False
        except OSError as error:
            if (
                error.errno == errno.EOPNOTSUPP
            ):  # this file system cannot tell: say the cautious thing
                return False
            raise

    def allocate(self, position: int, length: int) -> None:
        """Reserve disk for the range: a later write there neither grows nor fails the file."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.descriptor, position, length)
        else:  # macOS: the size at least, so that a write does not change it
            os.ftruncate(self.descriptor, position + length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Everything written to this file, and its size, is on disk when this returns."""
        if _FULL_SYNC is not None:
            fcntl.fcntl(self.descriptor, _FULL_SYNC)
        else:
            os.fdatasync(self.descriptor)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def map(self, length: int) -> mmap.mmap:
        """The first `length` bytes (more than 0, not past the end), read-only."""
        return mmap.mmap(self.descriptor, length, prot=mmap.PROT_READ)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1  # first: nobody closes it a second time
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A segment's file is shared by readers in several threads and goes with the last of them.
        if not _ending():  # then `os` may be emptied already, and the system closes what is open
            self.close()


class FileSystem:
    """The real disk."""

    #: Told after each `sync` of a log or of the journal: which of them, and the seconds it took.
    #: Called in whatever thread synced.
    on_sync: Callable[[str, float], None] | None = None

    def sync(self, file: File, kind: str) -> None:
        """`file.sync`, and tell how long that took."""
        started = time.perf_counter()
        file.sync()
        if self.on_sync is not None:
            self.on_sync(kind, time.perf_counter() - started)

    def open(self, path: str, *, write: bool = False) -> File:
        """Open a file that is there."""
        return File(path, os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC))

    def create(self, path: str) -> File:
        """Create a file, emptying what may be there under that name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return File(path, os.open(path, flags, 0o644))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_folder(self, path: str) -> None:
        """Names created, renamed or removed in this folder are on disk when this returns."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        """What an ordinary user may still write on the disk that holds `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """The size of the disk that holds `path`."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> File:
        """Hold `path` until the file is closed; raises where another process has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise storage_error(error, f"locking {path}") from error
            raise FolderLocked(
                f"the data folder {os.path.dirname(path)} is in use by process {holder or '?'}"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only its message will not name us
        return File(path, descriptor)

    # --- made of the steps above, so that a fault can strike between any two of them -------------

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: str, data: Buffer, *, sync_folder: bool = True) -> None:
        """Put `data` under `path` durably. A crash leaves the old content or the new, never a mix.

        Without `sync_folder` the new content is durable with the next `sync_folder` of the caller.

        A crash before the rename leaves a `.tmp` file beside the old one, which nobody reads and
        the next `replace_file` overwrites.
        """
        temporary = path + TEMPORARY_SUFFIX
        file = self.create(temporary)
        try:
            file.write([data], 0)
            file.sync()
        except OSError:
            file.close()
            self.remove(temporary)  # a full disk gets its space back
            raise
        file.close()
        self.rename(temporary, path)
        if sync_folder:
            self.sync_folder(os.path.dirname(path) or ".")


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """What is left of `buffers` once `written` bytes of them are out."""
    for index, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        if written < size:
            return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
        written -= size
    return []
