"""The data folder: a lock, and a folder for each topic with its description and its partitions.

    <data>/seglog.lock                        held by the one broker that may write here
           topic-NAME/topic.json              format, name, id, partitions, settings
                      partition-0/            a log
           creating-NAME/, deleted-NAME-ID/   swept up at the next start

A topic is there once its folder has its name, and gone once it has lost it: both are one rename.
"""

from __future__ import annotations

import logging
import os
import uuid
from typing import Any, Final

import msgspec

from ...protocol.constants import MAX_PARTITIONS_PER_TOPIC
from ...protocol.errors import (
    BadConfig,
    DamagedLog,
    SeglogError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    UnsupportedVersion,
)
from .config import LogConfig, config_values, make_config
from .filesystem import FileSystem, storage_error
from .journal import replay_journal
from .log import Log
from .names import (
    CREATING_PREFIX,
    DELETED_PREFIX,
    LOCK,
    PARTITION_PREFIX,
    TOPIC_FILE,
    TOPIC_PREFIX,
    check_topic_name,
    partition_folder,
    topic_folder,
)
from .recovery import open_log
from .segment import SegmentCache

logger = logging.getLogger(__name__)

TOPIC_FORMAT: Final = 1


class Topic(msgspec.Struct, frozen=True):
    """A topic as `topic.json` describes it."""

    name: str
    id: str
    partitions: int
    config: LogConfig


class _TopicFile(msgspec.Struct):
    format: int
    name: str
    id: str
    partitions: int
    config: dict[str, Any]


class DataFolder:
    """One broker's data. Opening takes the lock; a second broker is told and refused."""

    def __init__(self, fs: FileSystem, path: str, *, open_segments: int = 128) -> None:
        self.fs = fs
        self.path = os.path.abspath(path)
        self.cache = SegmentCache(open_segments)
        self.topics: dict[str, Topic] = {}
        self.damaged: dict[str, str] = {}  # topics that cannot be served, and why
        try:
            _make_folders(fs, self.path)
            self._lock = fs.lock(os.path.join(self.path, LOCK))
        except OSError as error:
            raise storage_error(error, f"opening the data folder {self.path}") from error
        try:
            self._sweep()
            self._load()
            self._replay()
            # A process that was killed may have left names in memory only, and they are served now.
            fs.sync_folder(self.path)
        except OSError as error:
            self._lock.close()
            raise storage_error(error, f"opening the data folder {self.path}") from error
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Give up the lock. The logs are closed by those who opened them. May be called twice."""
        self._lock.close()

    def create_topic(
        self, name: str, partitions: int = 1, settings: dict[str, Any] | None = None
    ) -> Topic:
        """Make a topic, durably; all of it or nothing."""
        check_topic_name(name)
        _check_partitions(partitions)
        if name in self.topics or name in self.damaged:
            raise TopicExists(f"topic {name} exists")
        topic = Topic(name, uuid.uuid4().hex, partitions, make_config(settings))
        folder = os.path.join(self.path, CREATING_PREFIX + name)
        try:
            if self.fs.exists(folder):
                self.fs.remove_tree(folder)
            self.fs.make_folder(folder)
            for number in range(partitions):
                self.fs.make_folder(os.path.join(folder, f"{PARTITION_PREFIX}{number}"))
            self._save(folder, topic)  # syncs the folder, with the partitions' names in it
            self.fs.rename(folder, topic_folder(self.path, name))
            self.fs.sync_folder(self.path)
        except OSError as error:
            raise storage_error(error, f"creating topic {name}") from error
        self.topics[name] = topic
        return topic

    def alter_topic(
        self, name: str, settings: dict[str, Any] | None = None, partitions: int | None = None
    ) -> Topic:
        """Change settings, or add partitions; a topic never loses one."""
        topic = self.topic(name)
        count = topic.partitions if partitions is None else partitions
        _check_partitions(count)
        if count < topic.partitions:
            raise BadConfig(f"partitions: {name} has {topic.partitions}, it cannot have fewer")
        changed = Topic(name, topic.id, count, topic.config.with_changes(settings or {}))
        folder = topic_folder(self.path, name)
        try:
            for number in range(topic.partitions, count):
                added = partition_folder(self.path, name, number)
                if not self.fs.exists(added):  # a crash may have left it from the last try
                    self.fs.make_folder(added)
            self._save(folder, changed)
        except OSError as error:
            raise storage_error(error, f"altering topic {name}") from error
        self.topics[name] = changed
        return changed

    def delete_topic(self, name: str) -> str:
        """Take a topic away, though its logs be open. Returns the folder to `discard`, when
        convenient. After an error the topic is still there, or gone until a power cut at most.
        """
        topic = self.topic(name)
        doomed = os.path.join(self.path, f"{DELETED_PREFIX}{name}-{topic.id}")
        try:
            self.fs.rename(topic_folder(self.path, name), doomed)
            del self.topics[name]
            self.fs.sync_folder(self.path)
        except OSError as error:
            raise storage_error(error, f"deleting topic {name}") from error
        return doomed

    def discard(self, doomed: str) -> None:
        """Remove the files of a deleted topic. A failure is left to the next start."""
        try:
            self.fs.remove_tree(doomed)
        except OSError as error:
            logger.warning("could not remove %s: %s", doomed, error)

    def topic(self, name: str) -> Topic:
        if name in self.topics:
            return self.topics[name]
        if name in self.damaged:
            raise DamagedLog(f"topic {name} cannot be served: {self.damaged[name]}")
        raise UnknownTopic(f"no topic {name}")

    def open_log(self, name: str, partition: int) -> Log:
        topic = self.topic(name)
        if partition >= topic.partitions:
            raise UnknownPartition(f"partition {partition} of {name}")
        folder = partition_folder(self.path, name, partition)
        try:
            return open_log(self.fs, folder, f"{name}/{partition}", topic.config, self.cache)
        except FileNotFoundError as error:
            raise DamagedLog(f"{name}/{partition}: {error.filename} is missing") from None
        except OSError as error:
            raise storage_error(error, f"opening {name}/{partition}") from error

    def _sweep(self) -> None:
        for entry in self.fs.list_folder(self.path):
            if entry.startswith((CREATING_PREFIX, DELETED_PREFIX)):
                self.discard(os.path.join(self.path, entry))

    def _load(self) -> None:
        for entry in self.fs.list_folder(self.path):
            if not entry.startswith(TOPIC_PREFIX):
                continue
            name = entry.removeprefix(TOPIC_PREFIX)
            try:
                topic = self._read_topic(name)
            except SeglogError as error:
                self.damaged[name] = error.what
                logger.error("topic %s cannot be served: %s", name, error.what)
            else:
                self.topics[name] = topic

    def _replay(self) -> None:
        """Bring the logs up to what was acked through the journal, before any of them is opened."""
        names = {topic.id: name for name, topic in self.topics.items()}

        def home(topic_id: str, partition: int) -> str | None:
            name = names.get(topic_id)
            return None if name is None else partition_folder(self.path, name, partition)

        replay_journal(self.fs, self.path, home)

    def _read_topic(self, name: str) -> Topic:
        path = os.path.join(topic_folder(self.path, name), TOPIC_FILE)
        try:
            described = msgspec.json.decode(self.fs.read_file(path), type=_TopicFile)
        except (OSError, msgspec.DecodeError) as error:
            raise DamagedLog(f"{path}: {error}") from None
        if described.format != TOPIC_FORMAT:
            raise UnsupportedVersion(f"{path} has format {described.format}")
        if described.name != name:
            raise DamagedLog(f"{path} describes {described.name!r}")
        _check_partitions(described.partitions)
        return Topic(name, described.id, described.partitions, make_config(described.config))

    def _save(self, folder: str, topic: Topic) -> None:
        described = _TopicFile(
            TOPIC_FORMAT, topic.name, topic.id, topic.partitions, dict(config_values(topic.config))
        )
        data = msgspec.json.format(msgspec.json.encode(described), indent=2)
        self.fs.replace_file(os.path.join(folder, TOPIC_FILE), data + b"\n")


def _check_partitions(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
        raise BadConfig(f"partitions: {count}, 1 to {MAX_PARTITIONS_PER_TOPIC} are allowed")


def _make_folders(fs: FileSystem, path: str) -> None:
    """The folder and those above it, as far as they are missing."""
    if fs.exists(path):
        return
    parent = os.path.dirname(path)
    _make_folders(fs, parent)
    fs.make_folder(path)
    fs.sync_folder(parent)
