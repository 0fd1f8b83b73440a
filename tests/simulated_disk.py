"""A disk that loses power, fills up and fails, on real files.

`SimulatedDisk` works on real files below a root folder, so that maps and descriptors are real, and
keeps beside them the model of what a power cut would keep:

- of a file (by inode, not by name): the bytes of its last `sync`, and the changes since, in order;
- of a folder: the names of its last `sync_folder`, and the changes since, in order.

`power_cut` writes the state after a cut into a new folder; a `Fate` decides what becomes of the
changes that were not synced:

    keep_nothing      only what was synced is there
    keep_everything   all is there: the process was killed, the machine stayed up
    keep_some(seed)   any write may be kept, lost or torn, whatever came before or after it; changes
                      of a file's size, and of a folder's names, are kept up to some point, in order
                      (as journaling file systems do); repeatable for a seed

A new folder's own name is safe only after `sync_folder` of its parent. A rename from one folder to
another is on the disk together with every older change of names: it is in the journal after them.

A sync that fails (`fail("sync")`) leaves the file's unsynced writes readable but clean, as Linux
does: no later sync saves them, only the growth of the file they caused.

Every change is a step with a number; `crash_at` cuts the power just before one, and
`run_with_crash_at_every_step` before each of them in turn.
"""

from __future__ import annotations

import errno
import fnmatch
import mmap
import os
import random
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NoReturn, TypeVar

from seglog.server.storage.filesystem import Buffer, File, FileSystem

SECTOR_BYTES: Final = 512  # a disk tears a write between its sectors, and ours anywhere

FILE_STEPS: Final = frozenset({"allocate", "sync", "truncate", "write"})
NAME_STEPS: Final = frozenset(
    {"create", "lock", "make_folder", "remove", "remove_folder", "rename", "sync_folder"}
)
LOOKS: Final = frozenset({"free_bytes", "is_cached", "list_folder", "map", "open", "read", "size"})
OPERATIONS: Final = FILE_STEPS | NAME_STEPS | LOOKS


class PowerCut(BaseException):
    """The power is gone. Not an `Exception`: no code under test may handle it and go on."""


# --- what a file holds, and what happened to it since its last sync ------------------------------


class Content:
    """The bytes of a file; those from `len(data)` up to `size` are zero and not stored."""

    __slots__ = ("data", "size")

    def __init__(self, data: Buffer = b"", size: int = 0) -> None:
        self.data = bytearray(data)
        self.size = max(size, len(self.data))

    def copy(self) -> Content:
        return Content(self.data, self.size)

    def write(self, data: Buffer, position: int) -> None:
        gap = position - len(self.data)
        if gap > 0:
            self.data.extend(bytes(gap))
        self.data[position : position + len(data)] = data
        self.size = max(self.size, len(self.data))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def save(self, path: str) -> None:
        with open(path, "xb") as file:
            file.write(self.data)
            file.truncate(self.size)


@dataclass(slots=True)
class Write:
    position: int
    data: bytes
    lost: bool = False  # a sync failed with it: the page counts as clean, and will not be written

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    def apply(self, content: Content) -> None:
        content.write(self.data, self.position)

    def apply_size(self, content: Content) -> None:
        content.size = max(content.size, self.end)


@dataclass(frozen=True, slots=True)
class Truncate:
    size: int

    def apply(self, content: Content) -> None:
        content.resize(self.size)

    apply_size = apply


@dataclass(frozen=True, slots=True)
class Allocate:
    position: int
    length: int

    def apply(self, content: Content) -> None:
        content.size = max(content.size, self.position + self.length)

    apply_size = apply


Change = Write | Truncate | Allocate


# --- what becomes of the changes that were not synced --------------------------------------------


class Fate:
    """What a power cut does. This one keeps nothing that was not synced."""

    description = "keep_nothing"

    def names_kept(self, pending: int) -> int:
        """How many of a folder's `pending` changes of names are kept: the first ones."""
        return 0

    def settle(self, content: Content, pending: Sequence[Change]) -> None:
        """Change `content`, which a sync made safe, by what is kept of `pending`."""


class _KeepEverything(Fate):
    description = "keep_everything"  # `power_cut` copies the real files


class _KeepSome(Fate):
    def __init__(self, source: random.Random, description: str) -> None:
        self.random = source
        self.description = description

    def names_kept(self, pending: int) -> int:
        return self.random.randint(0, pending)

    def settle(self, content: Content, pending: Sequence[Change]) -> None:
        """Sizes up to some change are kept; the data of each write is kept or not, on its own.

        So a size may be there without its data (zeros), data past the size is gone, and a write
        that came after a truncation may be there while the truncation is not.
        """
        sizes_kept = self.random.randint(0, len(pending))
        size = content.size
        for index, change in enumerate(pending):
            if index < sizes_kept:
                change.apply_size(content)
                size = content.size
            if isinstance(change, Write):
                for start, end in self._parts_kept(change):
                    content.write(change.data[start:end], change.position + start)
                if index == sizes_kept and self.random.random() < 0.5:  # the size stops within it
                    size = max(size, change.position + self.random.randint(0, len(change.data)))
        content.resize(size)

    def _parts_kept(self, write: Write) -> Iterator[tuple[int, int]]:
        length = len(write.data)
        kind = self.random.choice(("whole", "whole", "nothing", "start", "end", "sectors"))
        if kind == "whole":
            yield 0, length
        elif kind == "start":
            yield 0, self.random.randint(0, length)
        elif kind == "end":
            yield self.random.randint(0, length), length
        elif kind == "sectors":
            start = 0
            while start < length:
                end = min(length, start + SECTOR_BYTES - (write.position + start) % SECTOR_BYTES)
                if self.random.random() < 0.5:
                    yield start, end
                start = end


keep_nothing: Final = Fate()
keep_everything: Final[Fate] = _KeepEverything()


def keep_some(source: int | random.Random) -> Fate:
    """An adversary's choice: the same for the same seed."""
    if isinstance(source, int):
        return _KeepSome(random.Random(source), f"keep_some({source})")
    return _KeepSome(source, "keep_some(random.Random)")


# --- files and folders as the disk knows them ----------------------------------------------------


@dataclass(eq=False)
class _Node:
    parent: _Folder | None
    name: str

    @property
    def path(self) -> str:
        """The last name it had, relative to the root."""
        if self.parent is None:
            return "."
        return self.name if self.parent.parent is None else f"{self.parent.path}/{self.name}"


@dataclass(eq=False)
class _Inode(_Node):
    synced: Content = field(default_factory=Content)
    pending: list[Change] = field(default_factory=list)
    allocated_bytes: int = 0
    linked: bool = True
    open_count: int = 0

    def sync(self) -> None:
        for change in self.pending:
            if isinstance(change, Write) and change.lost:
                self.synced.write(b"", change.end)  # the size is kept, the data is not
            else:
                change.apply(self.synced)
        self.pending.clear()

    def lose_writes(self) -> None:
        for change in self.pending:
            if isinstance(change, Write):
                change.lost = True


@dataclass(eq=False)
class _Folder(_Node):
    names: dict[str, _Node] = field(default_factory=dict)
    synced_names: dict[str, _Node] = field(default_factory=dict)
    pending: list[_NameChange] = field(default_factory=list)

    def sync(self, up_to: int | None = None) -> None:
        """Make its changes safe: all, or those up to the one with this number."""
        left = []
        for change in self.pending:
            if up_to is None or change.number <= up_to:
                change.apply(self, self.synced_names)
            else:
                left.append(change)
        self.pending = left


@dataclass(eq=False)
class _NameChange:
    """One change of names, which is kept as a whole or not at all."""

    number: int
    effects: list[tuple[_Folder, str, _Node | None]]  # None: the name is gone

    @property
    def folders(self) -> list[_Folder]:
        return list(dict.fromkeys(folder for folder, _, _ in self.effects))

    def apply(self, to: _Folder, names: dict[str, _Node]) -> None:
        for folder, name, node in self.effects:
            if folder is to:
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node


@dataclass(eq=False)
class Fault:
    """A rule made by `SimulatedDisk.fail`; `hits` counts how often it struck."""

    operation: str
    path_glob: str
    error: int
    after: int
    times: int | None
    partial: int
    hits: int = 0

    def strikes(self, operation: str, paths: Iterable[str]) -> bool:
        if operation != self.operation or (self.times is not None and self.hits >= self.times):
            return False
        if not any(fnmatch.fnmatchcase(path, self.path_glob) for path in paths):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.hits += 1
        return True


# --- the disk ------------------------------------------------------------------------------------


class SimulatedFile(File):
    """A real open file, whose every call the disk sees first."""

    def __init__(self, disk: SimulatedDisk, path: str, descriptor: int, inode: _Inode) -> None:
        super().__init__(path, descriptor)
        self.disk = disk
        self.inode = inode

    def _write_once(self, buffers: list[Buffer], position: int) -> int:
        return self.disk._write(self, b"".join(buffers), position)

    def read(self, length: int, position: int) -> bytes:
        self.disk._look("read", self.inode.path)
        return super().read(length, position)

    def is_cached(self, length: int, position: int) -> bool:
        self.disk._look("is_cached", self.inode.path)
        return super().is_cached(length, position)

    def allocate(self, position: int, length: int) -> None:
        self.disk._allocate(self, position, length)

    def truncate(self, size: int) -> None:
        self.disk._truncate(self, size)

    def sync(self) -> None:
        self.disk._sync(self)

    def size(self) -> int:
        self.disk._look("size", self.inode.path)
        return super().size()

    def map(self, length: int) -> mmap.mmap:
        self.disk._look("map", self.inode.path)
        return super().map(length)

    def close(self) -> None:
        self.disk._close(self)


class SimulatedDisk(FileSystem):
    """See the top of this file. What `root` holds at the start counts as synced.

    `capacity_bytes` (None: no end) bounds the sum of what files have written or allocated, from
    their start to their last such byte. A removed file gives its space back once no `File` holds it
    open.

    `steps` counts the changes made, and `trace` has a line for each: `trace[n - 1]` is step n.
    `crash_at = n` cuts the power just before step n; `crash_torn_bytes`, where it is a write,
    lets so many of its bytes through. From then on every call raises `PowerCut`, but for
    `File.close`.
    """

    def __init__(self, root: str | os.PathLike[str], *, capacity_bytes: int | None = None) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.steps = 0
        self.trace: list[str] = []
        self.write_sizes: dict[int, int] = {}  # the bytes of each step that is a write
        self.crash_at: int | None = None
        self.crash_torn_bytes = 0
        self.is_cut = False
        self.cut_before = ""  # the step that the cut kept from happening, as in the trace
        self.faults: list[Fault] = []
        self._guard = threading.RLock()
        self._name_changes = 0
        self._open_files: weakref.WeakSet[SimulatedFile] = weakref.WeakSet()
        self._root = _Folder(None, "")
        self._folders = [self._root]
        os.makedirs(self.root, exist_ok=True)
        self._load(self._root, self.root)

    # --- power, faults, end ----------------------------------------------------------------------

    def power_cut(self, target: str | os.PathLike[str], choose: Fate) -> str:
        """Write into `target`, new or empty, what a cut now would leave; changes nothing here."""
        target = os.fspath(target)
        os.makedirs(target, exist_ok=True)
        with self._guard:
            if choose is keep_everything:
                self._copy_real(self._root, target)
            else:
                self._save_kept(self._root, target, self._names_kept(choose), choose)
        return target

    def cut(self) -> None:
        """Cut the power now."""
        with self._guard:
            self.is_cut = True

    def fail(
        self,
        operation: str,
        path_glob: str = "*",
        *,
        error: int | None = None,
        after: int = 0,
        times: int | None = 1,
        partial: int = 0,
    ) -> Fault:
        """Make calls fail: the next `times` (None: all) after the first `after` that match.

        `operation` is one of `OPERATIONS`; `path_glob` is matched with the path below the root,
        where `*` matches `/` too. A write that fails leaves its first `partial` bytes behind.
        `error` is EIO unless told, or ENOSPC with `partial`.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}; there are {sorted(OPERATIONS)}")
        if error is None:
            error = errno.ENOSPC if partial else errno.EIO
        fault = Fault(operation, path_glob, error, after, times, partial)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget every fault. The space is `capacity_bytes`' matter."""
        self.faults.clear()

    def close(self) -> None:
        """Close what the code under test left open, as the end of its process would."""
        for file in list(self._open_files):
            file.close()

    # --- the calls of FileSystem -----------------------------------------------------------------

    def open(self, path: str, *, write: bool = False) -> File:
        with self._guard:
            self._look("open", self._relative(path))
            return self._opened(super().open(path, write=write), self._inode(path))

    def create(self, path: str) -> File:
        with self._guard:
            relative = self._relative(path)
            self._step("create", f"create {relative}", relative)
            return self._created(super().create(path))

    def lock(self, path: str) -> File:
        with self._guard:
            relative = self._relative(path)
            self._step("lock", f"lock {relative}", relative)
            real = super().lock(path)
            content = os.pread(real.descriptor, 64, 0)
            file = self._created(real)
            self._record_write(file.inode, content, 0)
            return file

    def rename(self, old: str, new: str) -> None:
        with self._guard:
            before, after = self._relative(old), self._relative(new)
            self._step("rename", f"rename {before} -> {after}", before, after)
            super().rename(old, new)
            (old_folder, old_name), (new_folder, new_name) = self._place(old), self._place(new)
            node = old_folder.names[old_name]
            replaced = new_folder.names.get(new_name)
            if replaced is node:
                return
            self._change_names((old_folder, old_name, None), (new_folder, new_name, node))
            node.parent, node.name = new_folder, new_name
            self._unlinked(replaced)

    def remove(self, path: str) -> None:
        with self._guard:
            relative = self._relative(path)
            self._step("remove", f"remove {relative}", relative)
            super().remove(path)
            self._forget(path)

    def make_folder(self, path: str) -> None:
        with self._guard:
            relative = self._relative(path)
            self._step("make_folder", f"make_folder {relative}", relative)
            super().make_folder(path)
            parent, name = self._place(path)
            folder = _Folder(parent, name)
            self._folders.append(folder)
            self._change_names((parent, name, folder))

    def remove_tree(self, path: str) -> None:
        """File by file, so that the power can go between any two."""
        for name in self.list_folder(path):
            below = os.path.join(path, name)
            if os.path.isdir(below):
                self.remove_tree(below)
            else:
                self.remove(below)
        with self._guard:
            relative = self._relative(path)
            self._step("remove_folder", f"remove_folder {relative}", relative)
            os.rmdir(path)
            self._forget(path)

    def sync_folder(self, path: str) -> None:
        with self._guard:
            relative = self._relative(path)
            self._step("sync_folder", f"sync_folder {relative}", relative)
            super().list_folder(path)  # raises as the real call does where there is no such folder
            folder = self._folder(path)
            crossing = [c.number for c in folder.pending if len(c.folders) > 1]
            if crossing:
                for other in self._folders:
                    other.sync(up_to=max(crossing))
            folder.sync()

    def list_folder(self, path: str) -> list[str]:
        self._look("list_folder", self._relative(path))
        return super().list_folder(path)

    def exists(self, path: str) -> bool:
        self._raise_if_cut()
        return super().exists(path)

    def size(self, path: str) -> int:
        self._look("size", self._relative(path))
        return super().size(path)

    def free_bytes(self, path: str) -> int:
        with self._guard:
            self._look("free_bytes", self._relative(path))
            if self.capacity_bytes is None:
                return super().free_bytes(path)
            return self._room()

    # --- the calls of File -----------------------------------------------------------------------

    def _write(self, file: SimulatedFile, data: bytes, position: int) -> int:
        with self._guard:
            path = file.inode.path
            if not data:
                self._raise_if_cut()
                return 0
            if self._cut_is_next() and self.crash_torn_bytes:
                self._write_real(file, data[: self.crash_torn_bytes], position)
            what = f"write {path} [{position}:{position + len(data)}]"
            self._count(what)
            self.write_sizes[self.steps] = len(data)
            fault = self._fault("write", path)
            if fault is not None:
                self._write_real(file, data[: fault.partial], position)
                self._raise(fault.error, path)
            fits = len(data)
            if self.capacity_bytes is not None:
                fits = min(fits, file.inode.allocated_bytes + self._room() - position)
                if fits <= 0:
                    self._raise(errno.ENOSPC, path)
            return self._write_real(file, data[:fits], position)

    def _write_real(self, file: SimulatedFile, data: bytes, position: int) -> int:
        if not data:
            return 0
        written = os.pwrite(file.descriptor, data, position)
        self._record_write(file.inode, data[:written], position)
        return written

    def _record_write(self, inode: _Inode, data: bytes, position: int) -> None:
        inode.pending.append(Write(position, data))
        self._set_allocated(inode, max(inode.allocated_bytes, position + len(data)))

    def _allocate(self, file: SimulatedFile, position: int, length: int) -> None:
        with self._guard:
            inode, end = file.inode, position + length
            self._step("allocate", f"allocate {inode.path} [{position}:{end}]", inode.path)
            if position < 0 or length <= 0:
                self._raise(errno.EINVAL, inode.path)
            if self.capacity_bytes is not None and end > inode.allocated_bytes + self._room():
                self._raise(errno.ENOSPC, inode.path)
            # The real file only grows: the space is accounted for here, and zeros need no disk.
            os.ftruncate(file.descriptor, max(end, os.fstat(file.descriptor).st_size))
            inode.pending.append(Allocate(position, length))
            self._set_allocated(inode, max(inode.allocated_bytes, end))

    def _truncate(self, file: SimulatedFile, size: int) -> None:
        with self._guard:
            inode = file.inode
            self._step("truncate", f"truncate {inode.path} to {size}", inode.path)
            os.ftruncate(file.descriptor, size)
            self._record_truncate(inode, size)

    def _record_truncate(self, inode: _Inode, size: int) -> None:
        inode.pending.append(Truncate(size))
        self._set_allocated(inode, min(inode.allocated_bytes, size))

    def _sync(self, file: SimulatedFile) -> None:
        with self._guard:
            inode = file.inode
            self._count(f"sync {inode.path}")
            os.fstat(file.descriptor)  # raises EBADF on a closed file, as the real call does
            fault = self._fault("sync", inode.path)
            if fault is not None:
                inode.lose_writes()
                self._raise(fault.error, inode.path)
            inode.sync()

    def _close(self, file: SimulatedFile) -> None:
        with self._guard:
            if file.descriptor < 0:
                return
            File.close(file)
            self._open_files.discard(file)
            file.inode.open_count -= 1
            self._free_if_unused(file.inode)

    # --- steps and faults ------------------------------------------------------------------------

    def _step(self, operation: str, what: str, *paths: str) -> None:
        """Count a change that is about to happen; raises where it must not."""
        self._count(what)
        fault = self._fault(operation, *paths)
        if fault is not None:
            self._raise(fault.error, paths[0])

    def _count(self, what: str) -> None:
        if self._cut_is_next():
            self.is_cut = True
            self.cut_before = what
            raise PowerCut(f"before step {self.steps + 1}: {what}")
        self._raise_if_cut()
        self.steps += 1
        self.trace.append(what)

    def _look(self, operation: str, path: str) -> None:
        with self._guard:
            self._raise_if_cut()
            fault = self._fault(operation, path)
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error), path)

    def _fault(self, operation: str, *paths: str) -> Fault | None:
        return next((fault for fault in self.faults if fault.strikes(operation, paths)), None)

    def _raise(self, error: int, path: str) -> NoReturn:
        self.trace[-1] += f" fails with {errno.errorcode.get(error, error)}"
        raise OSError(error, os.strerror(error), path)

    def _cut_is_next(self) -> bool:
        return not self.is_cut and self.crash_at is not None and self.steps + 1 >= self.crash_at

    def _raise_if_cut(self) -> None:
        if self.is_cut:
            raise PowerCut(f"after step {self.steps}")

    # --- space -----------------------------------------------------------------------------------

    def _room(self) -> int:
        assert self.capacity_bytes is not None
        return max(0, self.capacity_bytes - self.used_bytes)

    def _set_allocated(self, inode: _Inode, allocated_bytes: int) -> None:
        self.used_bytes += allocated_bytes - inode.allocated_bytes
        inode.allocated_bytes = allocated_bytes

    def _free_if_unused(self, inode: _Inode) -> None:
        if not inode.linked and inode.open_count == 0:
            self._set_allocated(inode, 0)

    # --- names -----------------------------------------------------------------------------------

    def _relative(self, path: str) -> str:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        if relative.split(os.sep, 1)[0] == os.pardir:
            raise ValueError(f"{path} is not on the simulated disk {self.root}")
        return relative

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        relative = self._relative(path)
        for name in relative.split(os.sep) if relative != "." else ():
            below = node.names.get(name) if isinstance(node, _Folder) else None
            if below is None:
                raise RuntimeError(f"{path} was made behind the back of the simulated disk")
            node = below
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._node(path)
        assert isinstance(node, _Folder), path
        return node

    def _inode(self, path: str) -> _Inode:
        node = self._node(path)
        assert isinstance(node, _Inode), path
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, name = os.path.split(os.path.abspath(path))
        return self._folder(parent), name

    def _opened(self, real: File, inode: _Inode) -> SimulatedFile:
        file = SimulatedFile(self, real.path, real.descriptor, inode)
        real.descriptor = -1  # it has a new owner
        inode.open_count += 1
        self._open_files.add(file)
        return file

    def _created(self, real: File) -> SimulatedFile:
        """The file that the real disk made, or emptied, under this name."""
        folder, name = self._place(real.path)
        inode = folder.names.get(name)
        if isinstance(inode, _Inode):
            self._record_truncate(inode, 0)
        else:
            inode = _Inode(folder, name)
            self._change_names((folder, name, inode))
        return self._opened(real, inode)

    def _change_names(self, *effects: tuple[_Folder, str, _Node | None]) -> None:
        self._name_changes += 1
        change = _NameChange(self._name_changes, list(effects))
        for folder in change.folders:
            change.apply(folder, folder.names)
            folder.pending.append(change)

    def _forget(self, path: str) -> None:
        folder, name = self._place(path)
        node = folder.names[name]
        self._change_names((folder, name, None))
        self._unlinked(node)

    def _unlinked(self, node: _Node | None) -> None:
        if isinstance(node, _Inode):
            node.linked = False
            self._free_if_unused(node)

    # --- a folder from the model -----------------------------------------------------------------

    def _load(self, folder: _Folder, path: str) -> None:
        for name in sorted(os.listdir(path)):
            below = os.path.join(path, name)
            node: _Node
            if os.path.isdir(below):
                node = _Folder(folder, name)
                self._folders.append(node)
                self._load(node, below)
            else:
                with open(below, "rb") as file:
                    node = _Inode(folder, name, Content(file.read()))
                self._set_allocated(node, node.synced.size)
            folder.names[name] = folder.synced_names[name] = node

    def _names_kept(self, choose: Fate) -> dict[_Folder, dict[str, _Node]]:
        limits = {folder: choose.names_kept(len(folder.pending)) for folder in self._folders}
        # A rename between folders is kept in both, and after every older change, or in neither, and
        # before every younger one.
        all_kept_up_to, none_kept_from = 0, self._name_changes + 1
        crossing = {c.number: c for f in self._folders for c in f.pending if len(c.folders) > 1}
        for number, change in sorted(crossing.items()):
            if all(folder.pending.index(change) < limits[folder] for folder in change.folders):
                all_kept_up_to = number
            else:
                none_kept_from = number
                break
        kept = {}
        for folder, limit in limits.items():
            kept[folder] = names = dict(folder.synced_names)
            for index, change in enumerate(folder.pending):
                if change.number <= all_kept_up_to or (
                    index < limit and change.number < none_kept_from
                ):
                    change.apply(folder, names)
        return kept

    def _save_kept(
        self,
        folder: _Folder,
        target: str,
        kept: dict[_Folder, dict[str, _Node]],
        choose: Fate,
    ) -> None:
        for name, node in sorted(kept[folder].items()):
            path = os.path.join(target, name)
            if isinstance(node, _Folder):
                os.mkdir(path)
                self._save_kept(node, path, kept, choose)
            elif isinstance(node, _Inode):
                content = node.synced
                if node.pending:
                    content = content.copy()
                    choose.settle(content, node.pending)
                content.save(path)

    def _copy_real(self, folder: _Folder, target: str) -> None:
        for name, node in sorted(folder.names.items()):
            path = os.path.join(target, name)
            if isinstance(node, _Folder):
                os.mkdir(path)
                self._copy_real(node, path)
            elif isinstance(node, _Inode):
                real = os.path.join(self.root, node.path)
                with open(real, "rb") as file:
                    # A preallocated file is mostly zeros past this, which need not be copied.
                    data = file.read(self._written_end(node))
                Content(data, os.path.getsize(real)).save(path)

    def _written_end(self, inode: _Inode) -> int:
        ends = [change.end for change in inode.pending if isinstance(change, Write)]
        return max([len(inode.synced.data), *ends])


# --- a crash at every step -----------------------------------------------------------------------

State = TypeVar("State")


@dataclass(frozen=True)
class Crash(Generic[State]):
    """One power cut of `run_with_crash_at_every_step`. As a string: what to replay."""

    step: int  # of the action's steps, from 1; one past the last: the action was done
    steps: int
    what: str  # the step's line in the trace
    torn_bytes: int  # of that write, which went through
    fate: Fate
    state: State  # what `build` returned, as `action` left it

    @property
    def completed(self) -> bool:
        return self.step > self.steps

    def __str__(self) -> str:
        if self.completed:
            where = f"cut after the last of {self.steps} steps (only_step={self.step})"
        else:
            where = f"cut before step {self.step} of {self.steps} (only_step={self.step}), "
            where += self.what
        if self.torn_bytes:
            where += f", torn after {self.torn_bytes} bytes"
        return f"{where}; fate {self.fate.description}"


def run_with_crash_at_every_step(
    build: Callable[[SimulatedDisk], State],
    action: Callable[[SimulatedDisk, State], object],
    check: Callable[[str, Crash[State]], object],
    *,
    seeds: int = 3,
    torn_writes: bool = True,
    every: int = 1,
    only_step: int | None = None,
    capacity_bytes: int | None = None,
) -> int:
    """Cut the power before each step of `action`, and after the last; `check` what is left.

    `build(disk)` makes the state that `action(disk, state)` starts from, anew for every cut: it
    opens what the action needs and returns it, with a place where the action notes what was acked.
    Both must take the same steps each time. `check(folder, crash)` is called for each fate with a
    folder of its own, which it may change (recover, say); `crash.state` is what `build` returned,
    as it was at the cut.

    Each write is also torn at one random byte. `every` takes only each so-many-th step, and
    `only_step` replays one. Returns the number of checks made.
    """
    with tempfile.TemporaryDirectory(prefix="seglog-power-cut-") as work:
        disk = SimulatedDisk(os.path.join(work, "counted"), capacity_bytes=capacity_bytes)
        try:
            state = build(disk)
            first = disk.steps
            action(disk, state)
        finally:
            disk.close()
        steps = disk.steps - first
        chosen = range(1, steps + 2, every) if only_step is None else (only_step,)
        cuts = [(step, 0) for step in chosen]
        for step in chosen if torn_writes else ():
            size = disk.write_sizes.get(first + step, 0)
            if size > 1:
                cuts.append((step, random.Random(step).randrange(1, size)))
        checks = 0
        for step, torn_bytes in sorted(cuts):
            disk = SimulatedDisk(os.path.join(work, "running"), capacity_bytes=capacity_bytes)
            try:
                state = _run_until(disk, step, steps, torn_bytes, build, action)
            finally:
                disk.close()
            fates = [keep_everything, *(keep_some(step * 1000 + seed) for seed in range(seeds))]
            if not torn_bytes:  # what was not synced is lost whether torn or not
                fates.insert(0, keep_nothing)
            for fate in fates:
                folder = disk.power_cut(os.path.join(work, "after"), fate)
                crash = Crash(step, steps, disk.cut_before, torn_bytes, fate, state)
                try:
                    check(folder, crash)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # what pytest.fail raises is no Exception
                    raise AssertionError(f"{crash}: {type(error).__name__}: {error}") from error
                shutil.rmtree(folder)
                checks += 1
            shutil.rmtree(disk.root)
        return checks


def _run_until(
    disk: SimulatedDisk,
    step: int,
    steps: int,
    torn_bytes: int,
    build: Callable[[SimulatedDisk], State],
    action: Callable[[SimulatedDisk, State], object],
) -> State:
    """Build, then act until the cut."""
    state = build(disk)
    disk.crash_at = disk.steps + step
    disk.crash_torn_bytes = torn_bytes
    try:
        action(disk, state)
    except PowerCut:
        pass
    except Exception:
        if not disk.is_cut:  # else it is what the cut made of somebody's cleanup
            raise
    if disk.is_cut != (step <= steps):
        raise AssertionError(
            f"the action took {steps} steps when they were counted, and others in the run to be "
            f"cut at step {step}: it must do the same each time. The last ones: {disk.trace[-5:]}"
        )
    disk.cut()
    return state
