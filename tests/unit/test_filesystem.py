"""The seam to the real disk."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.errors import FolderLocked, StorageError, StorageFull
from seglog.server.storage.filesystem import (
    MAX_BUFFERS_PER_WRITE,
    Buffer,
    File,
    FileSystem,
    storage_error,
)


@pytest.fixture
def filesystem():
    return FileSystem()


@pytest.fixture
def file(filesystem, tmp_path):
    file = filesystem.create(str(tmp_path / "file"))
    yield file
    file.close()


class SlowFile(File):
    """The system takes only so many bytes at a time."""

    def __init__(self, real: File, most_bytes: int) -> None:
        super().__init__(real.path, os.dup(real.descriptor))
        self.most_bytes = most_bytes
        self.calls = 0

    def _write_once(self, buffers: list[Buffer], position: int) -> int:
        assert len(buffers) <= MAX_BUFFERS_PER_WRITE
        self.calls += 1
        most = 1 + self.calls % self.most_bytes
        return os.pwrite(self.descriptor, b"".join(buffers)[:most], position)


# --- writing and reading -------------------------------------------------------------------------


def test_a_write_is_one_call_where_the_system_takes_it_all(file):
    class Counted(File):
        calls = 0

        def _write_once(self, buffers: list[Buffer], position: int) -> int:
            self.calls += 1
            return super()._write_once(buffers, position)

    counted = Counted(file.path, os.dup(file.descriptor))
    buffers: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"efg")[1:]]

    assert counted.write(buffers, 0) == 6
    assert counted.calls == 1
    assert file.read(100, 0) == b"abcdfg"
    counted.write([b"x"] * (MAX_BUFFERS_PER_WRITE + 1), 0)
    assert counted.calls == 3


@given(
    st.lists(
        st.binary(max_size=9).map(bytearray) | st.binary(max_size=9),
        max_size=20,
    ),
    st.integers(0, 50),
    st.integers(1, 12),
)
def test_partial_writes_go_on_until_all_is_written(tmp_path_factory, buffers, position, most_bytes):
    real = FileSystem().create(str(tmp_path_factory.mktemp("write") / "file"))
    expected = b"".join(buffers)

    written = SlowFile(real, most_bytes).write(buffers, position)

    assert written == len(expected)
    assert real.read(1000, 0) == (bytes(position) + expected if expected else b"")
    real.close()


@pytest.mark.parametrize("most_bytes", [1, 2, 7, 100_000])
def test_partial_writes_of_more_buffers_than_one_call_takes(file, most_bytes):
    buffers = [b"%d," % number if number % 3 else b"" for number in range(2500)]

    assert SlowFile(file, most_bytes).write(buffers, 5) == len(b"".join(buffers))
    assert file.read(100_000, 5) == b"".join(buffers)


@pytest.mark.parametrize("buffers", [[], [b""], [b""] * 2000, [b"", memoryview(b"")]])
def test_writing_nothing_changes_nothing(file, buffers):
    assert file.write(buffers, 10) == 0
    assert file.size() == 0


def test_buffers_of_wider_items_are_counted_in_bytes(file):
    words = memoryview(bytearray(range(16))).cast("Q")

    assert SlowFile(file, 3).write([words, b"end"], 0) == 19
    assert file.read(100, 0) == bytes(range(16)) + b"end"


def test_a_read_is_short_only_at_the_end_of_the_file(file):
    file.write([b"0123456789"], 0)

    assert file.read(4, 3) == b"3456"
    assert file.read(4, 8) == b"89"
    assert file.read(4, 10) == file.read(4, 99) == file.read(0, 3) == b""


def test_positions_do_not_depend_on_each_other(file):
    file.write([b"late"], 10)
    file.write([b"early"], 0)

    assert file.read(100, 0) == b"early" + bytes(5) + b"late"


def test_allocation_grows_the_file_with_zeros_and_truncation_cuts_it(file):
    file.write([b"data"], 0)
    file.allocate(0, 4096)
    assert (file.size(), file.read(5, 0)) == (4096, b"data\0")

    file.truncate(2)
    file.sync()
    assert file.read(100, 0) == b"da"


def test_a_map_sees_later_writes_and_outlives_the_file(file, filesystem):
    file.write([b"0123"], 0)
    view = file.map(4)
    file.write([b"x"], 1)
    filesystem.remove(file.path)
    file.close()

    assert bytes(view) == b"0x23"
    with pytest.raises(TypeError):
        view[0] = 0
    view.close()


@pytest.mark.parametrize(
    ("length", "position"), [(4096, 0), (1, 9999), (0, 0), (50_000, 0), (5, 1 << 40)]
)
def test_asking_whether_a_range_is_cached_never_raises(file, length, position):
    file.write([bytes(10_000)], 0)

    cached = file.is_cached(length, position)

    assert isinstance(cached, bool)
    if position + length > 10_000:
        assert not cached


def test_closing_twice_is_fine(file):
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


# --- names ---------------------------------------------------------------------------------------


def test_open_needs_the_file_and_create_empties_it(filesystem, tmp_path):
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        filesystem.open(path, write=True)
    assert not filesystem.exists(path)

    filesystem.replace_file(path, b"content")
    reader = filesystem.open(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.write([b"x"], 0)
    filesystem.create(path).close()

    assert reader.size() == filesystem.size(path) == 0
    reader.close()


def test_folders_are_listed_in_order_and_removed_with_all_in_them(filesystem, tmp_path):
    folder = str(tmp_path / "folder")
    filesystem.make_folder(folder)
    with pytest.raises(FileExistsError):
        filesystem.make_folder(folder)
    for name in "cab":
        filesystem.replace_file(f"{folder}/{name}", b"")
    filesystem.make_folder(f"{folder}/below")
    filesystem.sync_folder(folder)
    assert filesystem.list_folder(folder) == ["a", "b", "below", "c"]

    filesystem.remove_tree(folder)
    assert filesystem.list_folder(str(tmp_path)) == []


def test_replace_file_replaces_and_leaves_nothing_beside_it(filesystem, tmp_path):
    path = str(tmp_path / "state")
    (tmp_path / "state.tmp").write_bytes(b"left by a crash, and longer than what comes")
    for content in (b"one", b"", bytearray(b"two" * 100_000)):
        filesystem.replace_file(path, content)
        assert filesystem.read_file(path) == content
    assert filesystem.list_folder(str(tmp_path)) == ["state"]


def test_free_bytes_is_what_the_disk_says(filesystem, tmp_path):
    assert 0 < filesystem.free_bytes(str(tmp_path)) < 1 << 60


# --- the lock ------------------------------------------------------------------------------------

HOLD = """
import sys
from seglog.server.storage.filesystem import FileSystem
lock = FileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: str) -> "subprocess.Popen[str]":
    """Another process that holds the lock until its input ends."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_a_lock_keeps_another_process_out_until_its_holder_ends(filesystem, tmp_path, end):
    path = str(tmp_path / "lock")
    with hold(path) as other:
        for _ in range(2):  # being refused neither takes nor breaks it
            with pytest.raises(FolderLocked) as raised:
                filesystem.lock(path)
            assert f"the data folder {tmp_path} is in use by process {other.pid}." in str(
                raised.value
            )
        if end == "exits":
            other.communicate()
        else:
            other.kill()

    lock = filesystem.lock(path)
    assert filesystem.read_file(path) == f"{os.getpid()}\n".encode()
    lock.close()


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_lock_that_was_refused_leaves_no_descriptor_open(filesystem, tmp_path):
    lock = filesystem.lock(str(tmp_path / "lock"))
    before = open_descriptors()
    for _ in range(5):
        with pytest.raises(FolderLocked):
            filesystem.lock(str(tmp_path / "lock"))
    assert open_descriptors() == before
    lock.close()


# --- errors in our own words ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_retriable(code):
    error = storage_error(OSError(code, os.strerror(code)), "appending to orders-0")

    assert type(error) is StorageFull
    assert error.retriable
    assert f"no space left while appending to orders-0: {os.strerror(code)}." in str(error)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_any_other_refusal_is_not_retriable(code):
    error = storage_error(OSError(code, os.strerror(code)), "syncing orders-0")

    assert type(error) is StorageError
    assert not error.retriable
    assert f"the disk refused while syncing orders-0: {os.strerror(code)}." in str(error)


def test_an_error_without_a_number_keeps_its_words():
    assert "while reading: odd" in str(storage_error(OSError("odd"), "reading"))
