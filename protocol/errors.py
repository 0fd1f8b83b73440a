"""One tree of errors, which is also the table of codes on the wire.

    SeglogError
    ├── BadRequest, UnsupportedApi, UnsupportedVersion, LimitExceeded …   the request
    ├── UnknownTopic, TopicExists, BadTopicName, BadConfig …              topics
    ├── BadBatch ─ DamagedBatch, BatchTooLarge, UnsupportedCodec          the batch
    ├── OffsetOutOfRange, LogTruncated, StorageFull, PartitionOffline …   the log
    ├── SequenceGap, DuplicateSequence, ProducerFenced, UnknownProducer   idempotent producers
    ├── UnknownGroup, UnknownMember, StaleMemberEpoch, MemberFenced …     consumer groups
    └── ClientError ─ ConnectionLost, RequestTimeout, DeliveryTimeout …   raised by the client
    itself

An error with a ``code`` can travel: ``ERRORS[code]`` is its class. A code is never reused.
``retriable`` says that the same call may succeed later, unchanged. ``advice`` tells what to do
next, and ends the message; what happened comes first.
"""

from __future__ import annotations

from typing import ClassVar, Self


class SeglogError(Exception):
    """The root of every error that Seglog raises on purpose."""

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = ""

    def __init__(self, what: str = "") -> None:
        self.what = what or type(self).__name__
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.what}. {self.advice}" if self.advice else self.what

    def details(self) -> dict[str, int]:
        """The numbers that a program may want beside the message; they travel with it."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    @classmethod
    def wire_name(cls) -> str:
        """``OffsetOutOfRange`` as ``OFFSET_OUT_OF_RANGE``: the name that documents and logs use."""
        letters = "".join("_" + c if c.isupper() else c.upper() for c in cls.__name__)
        return letters.lstrip("_")


class InternalError(SeglogError):
    """The broker met a fault of its own."""

    code = 2
    advice = "This is a defect in the broker: its log has the details"


# --- the request ---------------------------------------------------------------------------------


class BadRequest(SeglogError):
    """A request, or a field of it, that does not have the promised form."""

    code = 10
    advice = "Correct the named field; docs/protocol.md has the layout of every request"


class UnsupportedApi(SeglogError):
    """An api key that this broker does not know."""

    code = 11
    advice = "Ask hello for what the broker supports, or upgrade it"


class UnsupportedVersion(SeglogError):
    """A version of an api, or of a format, that this side does not speak."""

    code = 12
    advice = "Upgrade the older side"


class LimitExceeded(SeglogError):
    """A named limit of the broker would be passed."""

    code = 13
    advice = "Send less at once, or raise the named setting"


class TooManyConnections(SeglogError):
    """The broker, or one address, has all the connections it may have."""

    code = 14
    retriable = True
    advice = "Close connections that are not needed, or raise the named setting"


class HelloRequired(SeglogError):
    """A connection must open with ``hello``."""

    code = 15
    advice = "Send hello first"


class ShuttingDown(SeglogError):
    """The broker is stopping and takes no new work."""

    code = 16
    retriable = True
    advice = "Retry: it works again once the broker is back"


class CannotListen(SeglogError):
    """The broker cannot listen on the address it was given."""

    code = 17
    advice = "Give a free port (port=0 takes one) and an address of this machine"


# --- topics --------------------------------------------------------------------------------------


class UnknownTopic(SeglogError):
    """No topic of that name."""

    code = 20
    advice = "Create it, or check the spelling; list the topics to see what is there"


class TopicExists(SeglogError):
    """A topic of that name is there already."""

    code = 21
    advice = "Choose another name, or delete the old topic first"


class BadTopicName(SeglogError):
    """A name that cannot name a topic (it becomes the name of a folder)."""

    code = 22
    advice = "Use 1 to 200 of the characters a-z A-Z 0-9 . _ - and begin with a letter, digit or _"


class BadConfig(SeglogError):
    """A setting that is unknown, or has a value out of its range."""

    code = 23
    advice = "Correct the named setting; docs/operations.md lists them all"


class UnknownPartition(SeglogError):
    """The topic has no such partition."""

    code = 24
    advice = "Partitions count from 0; describe the topic to see how many there are"

    @classmethod
    def beyond(cls, topic: str, partition: int, count: int) -> Self:
        """Of a topic that has so many."""
        noun = "partition" if count == 1 else "partitions"
        return cls(f"{topic} has {count} {noun}, there is no {partition}")


class ProtectedTopic(SeglogError):
    """An internal topic: clients may neither read, write, change nor delete it."""

    code = 25
    advice = "Names that begin with __ belong to the broker: use another"


# --- the batch -----------------------------------------------------------------------------------


class BadBatch(SeglogError):
    """A batch whose parts contradict each other: it was never encoded properly."""

    code = 40
    advice = "The sender's encoder is at fault: nothing was taken from this batch"


class DamagedBatch(BadBatch):
    """A batch whose bytes changed after its checksum was made, or that was cut short."""

    code = 41
    advice = (
        "The bytes changed on the way or on disk: send or fetch again; if it stays, check the disk"
    )


class BatchTooLarge(BadBatch):
    """A batch beyond the size that this side takes."""

    code = 42
    advice = "Make smaller batches (batch_bytes), or raise max.batch.bytes"


class UnsupportedCodec(BadBatch):
    """A compression codec that this side does not know."""

    code = 43
    advice = "Use none, zstd or lz4, or upgrade the older side"


# --- the log -------------------------------------------------------------------------------------


class OffsetOutOfRange(SeglogError):
    """The offset lies before the log start (deleted), or after the end."""

    code = 60
    advice = "Read from the log start or the durable end, or let on_reset decide"

    def __init__(self, what: str = "", log_start: int = -1, durable_end: int = -1) -> None:
        super().__init__(what)
        self.log_start = log_start  # -1: not known
        self.durable_end = durable_end


class LogTruncated(SeglogError):
    """The log was cut back below what the reader has already read."""

    code = 61
    advice = "Records that were read are gone (durability=os and a power cut): read on from the cut"

    def __init__(self, what: str = "", cut_offset: int = -1) -> None:
        super().__init__(what)
        self.cut_offset = cut_offset  # the first offset that was cut; -1: not known


class StorageFull(SeglogError):
    """The disk is full: nothing of the request was kept."""

    code = 62
    retriable = True
    advice = "Free space, or lower the retention; writes resume by themselves"


class PartitionOffline(SeglogError):
    """The partition met a disk error and takes no writes until the broker restarts."""

    code = 63
    retriable = True
    advice = "Check the disk and the broker's log, then restart the broker: it recovers by scanning"


class DamagedLog(SeglogError):
    """A sealed or durable part of the log does not read back as it was written."""

    code = 64
    advice = "Other offsets are still served; restore the segment from a copy, or read past it"

    def __init__(self, what: str = "", resume_offset: int = -1) -> None:
        super().__init__(what)
        self.resume_offset = resume_offset  # where reading can go on; -1: not known


class FolderLocked(SeglogError):
    """Another process holds the data folder."""

    code = 65
    advice = "Stop the other broker, or give this one a data folder of its own"


class StorageError(SeglogError):
    """The disk refused an operation."""

    code = 66
    advice = "Check the permissions, the mount and the health of the disk"


# --- idempotent producers ------------------------------------------------------------------------


class SequenceGap(SeglogError):
    """A producer's batch came before the one that should precede it."""

    code = 80
    advice = "Send the missing batch first; the client library does so by itself"


class DuplicateSequence(SeglogError):
    """A batch that was appended before, too long ago to know its offset."""

    code = 81
    advice = "It is in the log once: do not send it again"


class ProducerFenced(SeglogError):
    """A newer instance of this producer has taken over."""

    code = 82
    advice = "Stop this instance: another one with a higher epoch is writing"


class UnknownProducer(SeglogError):
    """A continuation from a producer that the partition does not remember."""

    code = 83
    advice = "Ask for a new producer epoch and start its sequence at 0"


# --- consumer groups -----------------------------------------------------------------------------


class UnknownGroup(SeglogError):
    """No group of that name: nobody joined it, and nothing was committed in it."""

    code = 100
    advice = "Check the spelling; list the groups to see what is there"


class UnknownMember(SeglogError):
    """The group does not have that member: it never joined, it left, or its session timed out."""

    code = 101
    advice = "Give up every partition at once and join again with member epoch 0"


class StaleMemberEpoch(SeglogError):
    """An epoch that the member has left behind: what it was allowed then may be another's now."""

    code = 102
    advice = "Give up every partition at once and join again with member epoch 0"


class MemberFenced(SeglogError):
    """Another process has taken over this member's instance id."""

    code = 103
    advice = "Stop this one, or give it an instance_id of its own"


class GroupNotEmpty(SeglogError):
    """The group has live members, and only without them may this be done."""

    code = 104
    advice = "Stop the group's consumers first; they are gone once they left or timed out"


class NoCommonAssignor(SeglogError):
    """No assignor is supported by the broker and by every member."""

    code = 105
    advice = "Offer one that all members offer: sticky, range or roundrobin"


class NotOwner(SeglogError):
    """A commit for a partition that the member does not own (any more)."""

    code = 106
    advice = "Nothing was committed for it: its owner goes on from the last committed offset"


class BadGroupName(SeglogError):
    """A name that cannot name a group."""

    code = 107
    advice = "Use 1 to 200 of the characters a-z A-Z 0-9 . _ - and begin with a letter, digit or _"


class GroupTaken(SeglogError):
    """A member of the group, or the one who wants to join it, shares it with nobody."""

    code = 108
    advice = (
        "Stop the other one, or choose another group; one that crashed is gone after its session"
        " timeout"
    )


# --- the client's own: they never travel ---------------------------------------------------------


class ClientError(SeglogError):
    """The root of what the client finds out by itself."""

    code = 900


class ConnectionLost(ClientError):
    """The connection went away; whether the broker did what was asked is not known."""

    code = 901
    retriable = True
    advice = "Check that the broker runs; the client reconnects by itself"


class RequestTimeout(ClientError):
    """The broker did not answer in time; whether it did what was asked is not known."""

    code = 902
    retriable = True
    advice = "Look at the broker's load, or raise request_timeout_s"


class DeliveryTimeout(ClientError):
    """Records that were not acknowledged within delivery_timeout_s."""

    code = 903
    advice = "They may or may not be in the log: check the broker, then send them again"


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or was not opened."""

    code = 904
    advice = "Use it inside `async with`, or between start() and close()"


class NoBroker(ClientError):
    """No broker could be reached; nothing was sent."""

    code = 905
    retriable = True
    advice = "Check the address and that the broker runs (`seglog serve`)"


class CallbackFailed(ClientError):
    """A callback that the application gave has raised."""

    code = 906
    advice = "Correct the callback: what it raised is the cause of this error"


# --- transactions --------------------------------------------------------------------------------


class StepCommitted(SeglogError):
    """The step of a transaction was decided before: nothing can be added to it."""

    code = 120
    advice = "It is published once and for all: go on with the next step"


class StagedDataGone(SeglogError):
    """A commit names staged batches that are not there, or are another step's."""

    code = 121
    advice = "They expired (staged.retention.ms) or were never staged: stage the step again"


def _tree(root: type[SeglogError]) -> list[type[SeglogError]]:
    return [root] + [c for child in root.__subclasses__() for c in _tree(child)]


#: Every error that can travel, by its code.
ERRORS: dict[int, type[SeglogError]] = {c.code: c for c in _tree(SeglogError)}


def error_from_wire(code: int, what: str, details: dict[str, int] | None = None) -> SeglogError:
    """The error that the other side raised; a plain SeglogError where this side is older."""
    kind = ERRORS.get(code, SeglogError)
    error = kind.__new__(kind)
    SeglogError.__init__(error, what)
    for name, value in (details or {}).items():
        setattr(error, name, value)
    return error
