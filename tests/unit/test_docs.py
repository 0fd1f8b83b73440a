"""What the documents show is what the code does."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from seglog.protocol.batch import decode_batch, encode_batch
from seglog.protocol.header import BatchHeader, pack_prefix
from seglog.server.storage.index import SegmentIndex

ROOT = Path(__file__).resolve().parents[2]
STORAGE = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme_runs_and_prints_what_it_says():
    found = re.search(r"runs this -->\n```python\n(.*?)```.*?```text\n(.*?)```", README, re.DOTALL)
    assert found
    example, printed = found.groups()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert output.getvalue() == printed


def test_the_dumped_batch_is_what_the_code_stores():
    at = 1_700_000_000_000_000
    batch = encode_batch(
        [b"tea", None],
        keys=[b"k1", b"k2"],
        timestamps=[at, at + 250],
        headers=[(("n", b"v"),), ()],
    )
    stored = pack_prefix(1000, at + 1000, len(batch), 0) + batch[28:]
    assert [record.offset for record in decode_batch(stored)] == [1000, 1001]

    dump = STORAGE.split("<!-- dump: begin -->")[1].split("<!-- dump: end -->")[0]
    shown = b""
    for line in dump.strip().strip("`").strip().splitlines():
        found = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)(?:  |$)", line)
        assert found, line
        assert int(found[1], 16) == len(shown), f"the address in {line!r}"
        shown += bytes.fromhex(found[2])

    assert shown == stored


def table_after(heading: str) -> list[list[str]]:
    """The rows of the first table with a column `at` behind a heading of storage.md."""
    text = STORAGE.split(f"\n## {heading}\n")[1]
    rows = re.findall(r"(?m)^\| (\d+) \| (\w+) \|\s*(\w*)\s*\|", text.split("\n## ")[0])
    return [list(row) for row in rows]


def test_the_header_table_has_every_field_at_its_place():
    sizes = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8}
    rows = table_after("The batch")

    position = 0
    for at, type_, _ in rows:
        assert int(at) == position
        position += sizes[type_]
    assert position == 80
    names = [name.removesuffix("_us") for name in BatchHeader._fields]
    assert [name for _, _, name in rows] == names


def test_the_index_table_covers_the_64_bytes():
    sizes = {"4s": 4, "u32": 4, "u64": 8, "i64": 8}
    position = 0
    for at, type_, _ in table_after("Indexes"):
        assert int(at) == position
        position += sizes[type_]
    assert position == 64
    index = SegmentIndex(0, 1)
    assert [len(file) for file in index.pack()] == [64, 64]


NAMED_FILE = re.compile(r"`((?:protocol|server|scripts|tests|client|docs)/[\w/]+\.\w+)`")


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links_and_named_files_exist(path):
    text = path.read_text(encoding="utf-8")
    missing = [
        link
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if not (path.parent / link).exists()
    ]
    missing += [name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()]
    assert not missing


def test_architecture_names_every_file_of_the_record_path():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    unnamed = [
        path.name
        for path in (ROOT / "server" / "storage").glob("*.py")
        if path.name != "__init__.py" and path.name not in text
    ]
    assert not unnamed
