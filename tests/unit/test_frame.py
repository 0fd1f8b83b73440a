"""Frames come out whole, however their bytes arrive, and claim no memory before they do."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.protocol.constants import KIB, MAX_FRAME_BYTES, MIB
from seglog.protocol.errors import BadRequest, LimitExceeded, SeglogError
from seglog.protocol.frame import SHARED_BUFFER_BYTES, FrameReceiver, frame_prefix, pack_frame


def receiver(
    shared_bytes: int = SHARED_BUFFER_BYTES, limit: int = MAX_FRAME_BYTES
) -> FrameReceiver:
    return FrameReceiver(memoryview(bytearray(shared_bytes)), limit)


def feed(to: FrameReceiver, data: bytes) -> list[bytes]:
    """Hand over `data` as a transport does: never more at once than the buffer that is offered."""
    frames: list[bytes] = []
    while data:
        buffer = to.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        del buffer  # a transport does not keep it either: the frame behind it may have to grow
        frames += map(bytes, to.received(count))
        data = data[count:]
    return frames


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(content)) + content for content in contents)


contents_of_frames = st.lists(st.binary(min_size=1, max_size=300), max_size=12)


@given(contents_of_frames, st.lists(st.integers(1, 400), max_size=30), st.integers(4, 500))
def test_any_split_of_the_bytes_gives_the_same_frames(contents, sizes, shared_bytes):
    stream = framed(*contents)
    to = receiver(shared_bytes)
    frames = []
    for size in sizes:
        frames += feed(to, stream[:size])
        stream = stream[size:]
    frames += feed(to, stream)
    assert frames == contents
    assert to.is_between_frames


@given(contents_of_frames, st.data())
def test_what_is_not_whole_waits_for_the_rest(contents, data):
    stream = framed(*contents, b"the last one")
    cut = data.draw(st.integers(0, len(stream) - 1))
    to = receiver(64)
    begun = feed(to, stream[:cut])
    assert begun == contents[: len(begun)]
    assert to.is_between_frames == (stream[:cut] == framed(*begun))
    assert begun + feed(to, stream[cut:]) == [*contents, b"the last one"]


def test_a_large_frame_comes_in_byte_for_byte():
    content = bytes(range(256)) * 20_000
    assert feed(receiver(), framed(b"a", content, b"b")) == [b"a", content, b"b"]


def test_a_large_frame_is_received_in_place():
    to = receiver()
    content = bytes(3 * MIB)
    (rest,) = [framed(content)]
    while True:
        buffer = to.get_buffer()
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        owner = buffer.obj
        del buffer
        rest = rest[count:]
        if frames := to.received(count):
            break
    assert frames[0] is owner


@pytest.mark.parametrize("length", [101, 2**31, 2**32 - 1])
def test_a_length_beyond_the_limit_is_refused_before_memory_is_used(length):
    to = receiver(limit=100)
    feed(to, frame_prefix(length)[:3])
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match=rf"{length} bytes, max\.frame\.bytes allows 100"):
            feed(to, frame_prefix(length)[3:])
        assert tracemalloc.get_traced_memory()[1] < 10 * KIB
    finally:
        tracemalloc.stop()


def test_a_frame_at_the_limit_is_taken():
    assert feed(receiver(limit=100), framed(bytes(100))) == [bytes(100)]


def test_an_empty_frame_is_refused():
    with pytest.raises(BadRequest, match="an empty frame"):
        feed(receiver(), framed(b"x") + frame_prefix(0))


@given(
    contents_of_frames, st.lists(st.integers(1, 50), max_size=20), st.sampled_from([0, 2**32 - 1])
)
def test_a_stream_that_cannot_be_read_on_ends_the_same_way_however_it_arrives(
    contents, sizes, length
):
    stream = framed(*contents) + frame_prefix(length) + b"anything"
    to = receiver(1000, limit=10 * KIB)
    frames = []
    with pytest.raises(SeglogError) as raised:  # noqa: PT012 - it may raise at any of the pieces
        for size in sizes:
            frames += feed(to, stream[:size])
            stream = stream[size:]
        frames += feed(to, stream)
    assert type(raised.value) is (LimitExceeded if length else BadRequest)
    assert frames == contents[: len(frames)], "what came out before was whole and in order"


def test_memory_follows_the_bytes_that_arrived_not_the_length_that_was_claimed():
    to = receiver(64)
    feed(to, frame_prefix(32 * MIB))
    arrived = 0
    while arrived < 32 * MIB:
        buffer = to.get_buffer()
        held = arrived + len(buffer)
        assert held <= max(64 * KIB, 2 * arrived), f"{held} bytes held, {arrived} arrived"
        count = min(len(buffer), 48 * KIB)
        del buffer
        frames = to.received(count)
        arrived += count
    assert [len(frame) for frame in frames] == [32 * MIB]


def test_an_idle_connection_holds_no_buffer_of_its_own():
    shared = memoryview(bytearray(1000))
    to = FrameReceiver(shared)
    feed(to, framed(bytes(5000), b"x"))
    assert to.get_buffer() is shared


def test_frames_are_written_without_a_copy():
    batch = bytearray(1000)
    parts = pack_frame([b"head", batch])
    assert parts[2] is batch
    assert feed(receiver(), b"".join(parts)) == [b"head" + batch]
