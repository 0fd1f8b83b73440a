"""The simulated disk loses what it may lose, and nothing else: the fault tests lean on that."""

import errno
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.server.storage.filesystem import FileSystem

from tests.simulated_disk import (
    Change,
    Content,
    Crash,
    Fate,
    PowerCut,
    SimulatedDisk,
    keep_everything,
    keep_nothing,
    keep_some,
    run_with_crash_at_every_step,
)

SEEDS = 300


@pytest.fixture
def disk(tmp_path):
    disk = SimulatedDisk(tmp_path / "disk")
    yield disk
    disk.close()


def at(disk: SimulatedDisk, name: str) -> str:
    return f"{disk.root}/{name}"


def put(disk: SimulatedDisk, name: str, data: bytes = b"", *, sync: bool = True) -> None:
    """A file with this content under this name, safe or not."""
    file = disk.create(at(disk, name))
    file.write([data], 0)
    if sync:
        file.sync()
        disk.sync_folder(str(Path(at(disk, name)).parent))
    file.close()


def tree(folder: str | Path) -> dict[str, bytes | None]:
    """Every path below the folder with its content; None for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(Path(folder).rglob("*"))
    }


class Cuts:
    """Takes what each fate leaves of a disk, in folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(self, disk: SimulatedDisk, fate: Fate) -> dict[str, bytes | None]:
        self.count += 1
        return tree(disk.power_cut(self.folder / str(self.count), fate))

    def some(self, disk: SimulatedDisk, seeds: int = SEEDS) -> list[dict[str, bytes | None]]:
        return [self(disk, keep_some(seed)) for seed in range(seeds)]


@pytest.fixture
def cut(tmp_path):
    return Cuts(tmp_path / "cuts")


# --- content -------------------------------------------------------------------------------------


def test_bytes_that_were_not_synced_are_lost(disk, cut):
    put(disk, "a", b"safe")
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"lost"], 4)

    assert cut(disk, keep_nothing) == {"a": b"safe"}
    assert cut(disk, keep_everything) == {"a": b"safelost"}


def test_synced_bytes_survive_every_fate(disk, cut):
    put(disk, "a", b"old!")
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"s", b"", b"afe"], 0)
    file.sync()

    for fate in (keep_nothing, keep_everything, *map(keep_some, range(20))):
        assert cut(disk, fate) == {"a": b"safe"}, fate.description


def test_an_unsynced_write_is_kept_lost_or_torn_and_its_size_may_stay_without_its_data(disk, cut):
    put(disk, "a", b"")
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"0123"], 0)

    seen = {left["a"] for left in cut.some(disk)}

    assert {b"", b"0", b"01", b"012", b"0123", b"\0\0\0\0", b"01\0\0", b"\0\x0023"} <= seen
    for content in seen:  # what is there of the write is where it was written, and nothing else
        assert content is not None
        assert all(got in (0, byte) for got, byte in zip(content, b"0123", strict=False)), content


def test_a_later_write_may_be_kept_without_an_earlier_one(disk, cut):
    put(disk, "a", bytes(6))
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"one"], 0)
    file.write([b"two"], 3)

    seen = {left["a"] for left in cut.some(disk)}

    assert {b"\0\0\0two", b"one\0\0\0", b"onetwo", bytes(6)} <= seen


def test_a_long_write_may_lose_sectors_in_its_middle(disk, cut):
    put(disk, "a", bytes(2048))
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"x" * 2000], 24)

    seen = {left["a"] for left in cut.some(disk)}

    assert bytes(24) + b"x" * 488 + bytes(512) + b"x" * 1000 + bytes(24) in seen


def test_a_write_after_a_truncation_may_be_kept_while_the_truncation_is_lost(disk, cut):
    put(disk, "a", b"aaaa")
    file = disk.open(at(disk, "a"), write=True)
    file.truncate(1)
    file.write([b"b"], 1)

    seen = {left["a"] for left in cut.some(disk)}

    assert {b"aaaa", b"a", b"ab", b"abaa", b"a\0"} == seen
    assert cut(disk, keep_nothing) == {"a": b"aaaa"}
    assert cut(disk, keep_everything) == {"a": b"ab"}


def test_a_file_grows_only_after_the_truncation_that_came_before_is_kept(disk, cut):
    put(disk, "a", b"aaaa")
    file = disk.open(at(disk, "a"), write=True)
    file.truncate(1)
    file.write([b"b"], 5)

    seen = {left["a"] for left in cut.some(disk)}

    assert seen == {b"aaaa", b"a", b"a" + bytes(4), b"a" + bytes(5), b"a" + bytes(4) + b"b"}


def test_an_allocation_grows_the_file_with_zeros_once_synced(disk, cut):
    put(disk, "a", b"data")
    file = disk.open(at(disk, "a"), write=True)
    file.allocate(0, 10)
    assert file.size() == 10
    assert cut(disk, keep_nothing) == {"a": b"data"}
    assert {left["a"] for left in cut.some(disk, 20)} == {b"data", b"data" + bytes(6)}

    file.sync()
    assert cut(disk, keep_nothing) == {"a": b"data" + bytes(6)}

    file.truncate(4)
    file.sync()
    assert cut(disk, keep_nothing) == {"a": b"data"}


def test_creating_over_a_file_only_empties_it_once_synced(disk, cut):
    put(disk, "a", b"old")
    file = disk.create(at(disk, "a"))
    assert cut(disk, keep_nothing) == {"a": b"old"}
    assert cut(disk, keep_everything) == {"a": b""}

    file.sync()
    assert cut(disk, keep_nothing) == {"a": b""}


def test_what_a_failed_sync_covered_is_not_saved_by_the_next_one(disk, cut):
    put(disk, "a", b"safe")
    file = disk.open(at(disk, "a"), write=True)
    file.write([b"gone"], 4)
    disk.fail("sync", "a")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.write([b"kept"], 8)
    file.sync()

    assert file.read(100, 0) == b"safegonekept"
    assert cut(disk, keep_nothing) == {"a": b"safe\0\0\0\0kept"}
    assert cut(disk, keep_everything) == {"a": b"safegonekept"}
    file.truncate(4)
    file.sync()
    assert cut(disk, keep_nothing) == {"a": b"safe"}


# --- names ---------------------------------------------------------------------------------------


def test_a_new_name_is_lost_until_its_folder_is_synced(disk, cut):
    file = disk.create(at(disk, "a"))
    file.write([b"data"], 0)
    file.sync()
    assert cut(disk, keep_nothing) == {}

    disk.sync_folder(disk.root)
    assert cut(disk, keep_nothing) == {"a": b"data"}


def test_a_durable_name_does_not_make_its_content_durable(disk, cut):
    put(disk, "a", b"data", sync=False)
    disk.sync_folder(disk.root)

    assert cut(disk, keep_nothing) == {"a": b""}
    seen = {left["a"] for left in cut.some(disk)}
    assert {b"", b"da", b"data", bytes(4)} <= seen


def test_a_removed_name_comes_back_until_its_folder_is_synced(disk, cut):
    put(disk, "a", b"data")
    disk.remove(at(disk, "a"))
    assert cut(disk, keep_nothing) == {"a": b"data"}
    assert cut(disk, keep_everything) == {}

    disk.sync_folder(disk.root)
    assert cut(disk, keep_nothing) == {}


def test_a_new_folder_is_lost_with_all_in_it_until_its_parent_is_synced(disk, cut):
    disk.make_folder(at(disk, "d"))
    put(disk, "d/a", b"data")
    assert cut(disk, keep_nothing) == {}
    assert cut(disk, keep_everything) == {"d": None, "d/a": b"data"}

    disk.sync_folder(disk.root)
    assert cut(disk, keep_nothing) == {"d": None, "d/a": b"data"}


def test_changes_of_a_folder_are_kept_in_order(disk, cut):
    for name in "abc":
        put(disk, name, sync=False)
    disk.rename(at(disk, "a"), at(disk, "z"))
    disk.remove(at(disk, "b"))

    seen = {"".join(left) for left in cut.some(disk)}

    assert seen == {"", "a", "ab", "abc", "bcz", "cz"}


def test_a_removed_file_that_is_open_stays_readable_and_its_name_may_be_taken(disk, cut):
    put(disk, "a", b"old")
    file = disk.open(at(disk, "a"), write=True)
    view = file.map(3)
    disk.remove(at(disk, "a"))
    put(disk, "a", b"new")
    file.write([b"OLD"], 0)
    file.sync()

    assert file.read(3, 0) == b"OLD"
    assert bytes(view) == b"OLD"
    assert cut(disk, keep_nothing) == {"a": b"new"}
    view.close()


def test_a_file_is_followed_through_renames_of_it_and_its_folder(disk, cut):
    disk.make_folder(at(disk, "d"))
    file = disk.create(at(disk, "d/a"))
    disk.rename(at(disk, "d/a"), at(disk, "d/b"))
    disk.rename(at(disk, "d"), at(disk, "e"))
    disk.sync_folder(at(disk, "e"))
    disk.sync_folder(disk.root)
    file.write([b"data"], 0)
    file.sync()

    assert cut(disk, keep_nothing) == {"e": None, "e/b": b"data"}
    assert disk.trace[-2:] == ["write e/b [0:4]", "sync e/b"]


def test_a_rename_between_folders_is_kept_in_both_or_in_neither(disk, cut):
    disk.make_folder(at(disk, "d"))
    disk.sync_folder(disk.root)
    put(disk, "a", b"data")
    disk.make_folder(at(disk, "new"))
    disk.rename(at(disk, "a"), at(disk, "new/a"))
    put(disk, "later", sync=False)

    seen = {" ".join(left) for left in cut.some(disk)}
    assert seen == {"a d", "a d new", "d new new/a", "d later new new/a"}

    disk.sync_folder(at(disk, "new"))
    assert cut(disk, keep_nothing) == {"d": None, "new": None, "new/a": b"data"}


def test_removing_a_tree_takes_a_step_for_each_name(disk, cut):
    disk.make_folder(at(disk, "d"))
    disk.make_folder(at(disk, "d/e"))
    disk.sync_folder(disk.root)
    disk.sync_folder(at(disk, "d"))
    put(disk, "d/a", b"1")
    put(disk, "d/e/b", b"2")
    before = disk.steps
    whole = {"d": None, "d/a": b"1", "d/e": None, "d/e/b": b"2"}
    assert cut(disk, keep_nothing) == whole

    disk.remove_tree(at(disk, "d"))

    assert disk.trace[before:] == [
        "remove d/a",
        "remove d/e/b",
        "remove_folder d/e",
        "remove_folder d",
    ]
    assert cut(disk, keep_nothing) == whole
    assert {"d": None, "d/e": None} in cut.some(disk, 50)
    disk.sync_folder(disk.root)
    assert cut(disk, keep_nothing) == {}


def test_a_lock_keeps_a_second_one_out_until_it_is_closed(disk, cut):
    lock = disk.lock(at(disk, "lock"))
    with pytest.raises(Exception, match="is in use by process"):
        disk.lock(at(disk, "lock"))
    lock.close()
    disk.lock(at(disk, "lock")).close()

    assert cut(disk, keep_nothing) == {}
    assert cut(disk, keep_everything) == tree(disk.root) != {}


# --- the model against the real files ------------------------------------------------------------


class KeepAllByTheModel(Fate):
    """What `keep_everything` copies from the real files, from the model of them."""

    def names_kept(self, pending: int) -> int:
        return pending

    def settle(self, content: Content, pending: Sequence[Change]) -> None:
        for change in pending:
            change.apply(content)


names = st.sampled_from(["a", "b", "d/a", "d/b", "e/a"])
small = st.integers(0, 40)
operations = st.one_of(
    st.tuples(st.just("write"), names, small, st.binary(max_size=30)),
    st.tuples(st.just("allocate"), names, small, st.integers(1, 40)),
    st.tuples(st.just("truncate"), names, small),
    st.tuples(st.sampled_from(["create", "sync", "remove"]), names),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("sync_folder"), st.sampled_from(["", "d", "e"])),
)


def perform(disk: SimulatedDisk, operation: tuple) -> None:
    kind, name, *rest = operation
    path = at(disk, name)
    if kind in ("remove", "sync_folder"):
        getattr(disk, kind)(path)
    elif kind == "rename":
        disk.rename(path, at(disk, rest[0]))
    else:
        file = disk.create(path) if kind == "create" else disk.open(path, write=True)
        if kind == "write":
            file.write([rest[1]], rest[0])
        elif kind != "create":
            getattr(file, kind)(*rest)
        file.close()


@given(st.lists(operations, max_size=40), st.integers(0, 1 << 32))
def test_the_model_agrees_with_the_real_files(tmp_path_factory, operations, seed):
    work = tmp_path_factory.mktemp("disk")
    disk = SimulatedDisk(work / "disk")
    cut = Cuts(work / "cuts")
    for folder in "de":
        disk.make_folder(at(disk, folder))
    for operation in operations:
        try:
            perform(disk, operation)
        except FileNotFoundError:
            pass

    real = tree(disk.root)
    assert cut(disk, keep_everything) == real
    assert cut(disk, KeepAllByTheModel()) == real
    # any cut is a disk to start from, and the same seed cuts the same
    left = cut(disk, keep_some(seed))
    assert left == cut(disk, keep_some(random.Random(seed)))
    again = SimulatedDisk(work / "cuts" / "3")
    assert cut(again, keep_nothing) == left
    assert disk.used_bytes <= sum(len(content) for content in real.values() if content is not None)


# --- faults and space ----------------------------------------------------------------------------


def test_a_fault_strikes_the_named_operation_and_path_after_some_and_so_many_times(disk):
    disk.make_folder(at(disk, "d"))
    log, index = disk.create(at(disk, "d/0.log")), disk.create(at(disk, "d/0.index"))
    fault = disk.fail(operation="sync", path_glob="*.log", error=errno.EDQUOT, after=1, times=2)

    log.sync()
    for _ in range(2):
        index.sync()
        with pytest.raises(OSError, match=r"d/0\.log") as raised:
            log.sync()
        assert raised.value.errno == errno.EDQUOT
    log.sync()

    assert fault.hits == 2
    assert disk.trace.count("sync d/0.log fails with EDQUOT") == 2


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("read", lambda disk, file: file.read(1, 0)),
        ("map", lambda disk, file: file.map(1)),
        ("size", lambda disk, file: file.size()),
        ("allocate", lambda disk, file: file.allocate(0, 10)),
        ("truncate", lambda disk, file: file.truncate(0)),
        ("write", lambda disk, file: file.write([b"x"], 0)),
        ("open", lambda disk, file: disk.open(file.path)),
        ("create", lambda disk, file: disk.create(file.path)),
        ("lock", lambda disk, file: disk.lock(file.path)),
        ("rename", lambda disk, file: disk.rename(file.path, file.path + "2")),
        ("remove", lambda disk, file: disk.remove(file.path)),
        ("make_folder", lambda disk, file: disk.make_folder(at(disk, "d"))),
        ("sync_folder", lambda disk, file: disk.sync_folder(disk.root)),
        ("list_folder", lambda disk, file: disk.list_folder(disk.root)),
    ],
)
def test_any_operation_can_fail_and_then_changes_nothing(disk, cut, operation, call):
    put(disk, "a", b"data")
    file = disk.open(at(disk, "a"), write=True)
    disk.fail(operation, times=None)

    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            call(disk, file)

    assert cut(disk, keep_everything) == cut(disk, keep_nothing) == {"a": b"data"}
    disk.heal()
    call(disk, file)


def test_an_unknown_operation_is_refused(disk):
    with pytest.raises(ValueError, match="no operation 'fsync'"):
        disk.fail("fsync")


def test_a_write_may_fail_after_some_of_its_bytes(disk):
    put(disk, "a", b"....")
    file = disk.open(at(disk, "a"), write=True)
    disk.fail("write", partial=3)

    with pytest.raises(OSError, match="No space left") as raised:
        file.write([b"01", b"23"], 0)

    assert raised.value.errno == errno.ENOSPC
    assert file.read(4, 0) == b"012."


def test_a_disk_that_fills_takes_what_fits_and_works_again_once_there_is_space(disk):
    disk.capacity_bytes = 10
    put(disk, "a", b"x" * 6)
    file = disk.create(at(disk, "b"))
    assert disk.free_bytes(disk.root) == 4

    with pytest.raises(OSError, match="No space left"):
        file.write([b"012345"], 0)
    assert file.read(10, 0) == b"0123"  # as the real disk does
    with pytest.raises(OSError, match="No space left"):
        file.allocate(0, 5)
    file.write([b"ABCD"], 0)  # space that it has

    file.truncate(2)
    assert disk.free_bytes(disk.root) == 2
    disk.capacity_bytes = 12
    file.allocate(0, 6)
    file.write([b"012345"], 0)  # never fails: the space was allocated
    assert disk.free_bytes(disk.root) == 0

    disk.remove(at(disk, "a"))
    assert disk.free_bytes(disk.root) == 6
    file.write([b"678901"], 6)


def test_a_removed_file_gives_its_space_back_when_it_is_closed(disk):
    disk.capacity_bytes = 10
    file = disk.create(at(disk, "a"))
    file.write([b"x" * 10], 0)
    disk.remove(at(disk, "a"))
    assert disk.free_bytes(disk.root) == 0

    file.close()
    file.close()
    assert disk.free_bytes(disk.root) == 10


def test_a_rename_to_the_same_name_changes_nothing(disk, cut):
    disk.capacity_bytes = 10
    put(disk, "a", b"data")
    disk.rename(at(disk, "a"), at(disk, "a"))
    assert disk.free_bytes(disk.root) == 6
    assert cut(disk, keep_nothing) == cut(disk, keep_everything) == {"a": b"data"}


def test_a_file_that_nobody_holds_any_more_is_closed(disk):
    disk.capacity_bytes = 10
    file = disk.create(at(disk, "a"))
    file.write([b"x" * 10], 0)
    disk.remove(at(disk, "a"))
    del file
    assert disk.free_bytes(disk.root) == 10


def test_paths_the_disk_does_not_know_are_refused(disk, tmp_path):
    with pytest.raises(ValueError, match="not on the simulated disk"):
        disk.create(str(tmp_path / "elsewhere"))
    Path(at(disk, "a")).touch()
    with pytest.raises(RuntimeError, match="behind the back"):
        disk.open(at(disk, "a"))


# --- a crash at a step ---------------------------------------------------------------------------


def test_a_crash_comes_before_its_step_and_nothing_changes_after_it(disk, cut):
    put(disk, "a", b"old")  # create, write, sync, sync_folder
    file = disk.open(at(disk, "a"), write=True)
    disk.crash_at = disk.steps + 2

    file.write([b"new"], 0)
    with pytest.raises(PowerCut, match=r"before step 6: write a \[3:6\]"):
        file.write([b"new"], 3)
    for call in (
        file.sync,
        file.size,
        lambda: file.read(1, 0),
        lambda: file.truncate(0),
        lambda: disk.remove(at(disk, "a")),
        lambda: disk.exists(disk.root),
        lambda: disk.list_folder(disk.root),
    ):
        with pytest.raises(PowerCut, match="after step 5"):
            call()
    file.close()

    assert not issubclass(PowerCut, Exception)
    assert (disk.steps, disk.trace[-1]) == (5, "write a [0:3]")
    assert cut(disk, keep_nothing) == {"a": b"old"}
    assert cut(disk, keep_everything) == {"a": b"new"}


def test_a_crash_may_tear_the_write_it_comes_at(disk, cut):
    put(disk, "a")
    file = disk.open(at(disk, "a"), write=True)
    disk.crash_at, disk.crash_torn_bytes = disk.steps + 1, 3

    with pytest.raises(PowerCut):
        file.write([b"01", b"23"], 0)

    assert cut(disk, keep_everything) == {"a": b"012"}
    assert cut(disk, keep_nothing) == {"a": b""}


def test_replace_file_leaves_old_or_new_content_at_every_step_and_fate():
    old, new = b"old" * 1000, b"new!" * 2000
    left = set()

    def build(disk: SimulatedDisk) -> list[str]:
        disk.replace_file(at(disk, "state"), old)
        return []

    def action(disk: SimulatedDisk, acked: list[str]) -> None:
        disk.replace_file(at(disk, "state"), new)
        acked.append("new")

    def check(folder: str, crash: Crash[list[str]]) -> None:
        content = FileSystem().read_file(f"{folder}/state")
        assert content == new if crash.completed else content in (old, new)
        assert crash.completed == (crash.state == ["new"])
        left.add((crash.step, content == new))
        # what is left behind does not stop the next one
        FileSystem().replace_file(f"{folder}/state", b"next")
        assert tree(folder) == {"state": b"next"}

    checks = run_with_crash_at_every_step(build, action, check, seeds=20)

    # create, write, sync, rename, sync_folder; before the last of them both are possible
    assert left == {
        (1, False),
        (2, False),
        (3, False),
        (4, False),
        (5, False),
        (5, True),
        (6, True),
    }
    assert checks == 6 * 22 + 21


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_a_crash_at_every_step_finds_a_forgotten_sync_and_says_what_to_replay(forgotten):
    def action(disk: SimulatedDisk, state: None) -> None:
        file = disk.create(at(disk, "state.tmp"))
        file.write([b"new"], 0)
        if forgotten != "sync":
            file.sync()
        disk.rename(at(disk, "state.tmp"), at(disk, "state"))
        if forgotten != "sync_folder":
            disk.sync_folder(disk.root)

    def check(folder: str, crash: Crash[None]) -> None:
        content = tree(folder).get("state")
        assert content in (b"old", b"new")
        assert content == b"new" or not crash.completed

    with pytest.raises(AssertionError) as raised:
        run_with_crash_at_every_step(lambda disk: put(disk, "state", b"old"), action, check)

    message = str(raised.value)
    if forgotten == "sync":  # the rename may be on disk before the data
        assert "cut before step 4 of 4 (only_step=4), sync_folder .; fate keep_some(40" in message
    else:
        assert "cut after the last of 4 steps (only_step=5); fate keep_nothing" in message


def test_an_action_that_differs_between_runs_is_reported():
    runs = []

    def action(disk: SimulatedDisk, state: None) -> None:
        runs.append(1)
        for _ in range(3 if len(runs) == 1 else 1):
            disk.sync_folder(disk.root)

    with pytest.raises(AssertionError, match="must do the same each time"):
        run_with_crash_at_every_step(lambda disk: None, action, lambda folder, crash: None)


def test_code_that_swallows_everything_and_cleans_up_changes_nothing_after_the_cut():
    def action(disk: SimulatedDisk, state: None) -> None:
        try:
            put(disk, "b", b"data")
        except Exception:
            pytest.fail("a cut is not an error to be handled")
        finally:
            disk.remove(at(disk, "a"))

    def check(folder: str, crash: Crash[None]) -> None:
        assert crash.step >= 5 or tree(folder).get("a") == b"safe"

    run_with_crash_at_every_step(lambda disk: put(disk, "a", b"safe"), action, check)


def test_many_cuts_of_a_large_file_are_cheap(disk, tmp_path):
    put(disk, "a", b"x" * (1 << 20))
    file = disk.open(at(disk, "a"), write=True)
    file.allocate(1 << 20, 16 << 20)
    for number in range(1000):
        file.write([b"y" * 100], (1 << 20) + number * 100)
        file.sync()
    for number in range(100):
        folder = Path(disk.power_cut(tmp_path / "after", keep_some(number)))
        assert (folder / "a").stat().st_size == 17 << 20
        (folder / "a").unlink()
