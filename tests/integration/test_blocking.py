"""The blocking clients, from one thread and from several."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from seglog import SyncAdmin, SyncConsumer, SyncProducer, errors


@pytest.fixture
def bootstrap(seglog_broker):
    return seglog_broker.bootstrap


def client_threads():
    return [t for t in threading.enumerate() if t.name == "seglog-client"]


def test_records_go_there_and_back(bootstrap):
    with SyncAdmin(bootstrap) as admin:
        admin.create_topic("t", 1)
        with SyncProducer(bootstrap) as producer:
            assert producer.send("t", "one", key="k").result(10).offset == 0
            assert producer.send_and_wait("t", b"two").offset == 1
            delivery = producer.send_batch("t", [b"three", b"four"])
            assert [part.record_count for part in delivery.result()] == [2]
            assert delivery.is_done
            producer.flush()
        with SyncConsumer("t", bootstrap=bootstrap, start="earliest") as consumer:
            assert consumer.assignment == [("t", 0)]
            assert next(consumer).value == b"one"
            assert next(iter(consumer)).value == b"two"
            assert consumer.position("t", 0) == 2
            assert consumer.lag() == {("t", 0): 2}
            assert next(consumer.batches()).values == [b"three", b"four"]
            assert consumer.getmany(5, timeout=0) == []
            consumer.seek_to_start()
            assert len(consumer.getmany(5)) >= 1
            consumer.seek("t", 0, 3)
            consumer.pause()
            assert consumer.getmany(5, timeout=0.01) == []
            consumer.resume(("t", 0))
            assert consumer.getmany(5)[0].value == b"four"
            consumer.seek_to_end()
            assert consumer.end_offsets() == {("t", 0): 4}
            consumer.seek_to_time(0)
            assert consumer.position("t", 0) == 0
        assert admin.list_topics() == ["t"]
        assert admin.list_offsets("t")[0].offset == 4
        assert admin.delete_records("t", 0, 2) == 2
        assert admin.describe_topic("t").partitions[0].log_start == 2
        admin.alter_topic("t", 2)
        assert len(admin.metadata().topics[0].leaders) == 2
        admin.delete_topic("t")
    assert client_threads() == []


def test_one_producer_serves_many_threads(bootstrap):
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap) as producer:
        admin.create_topic("t", 4)

        def send_some(name):
            for n in range(50):
                producer.send("t", b"%d" % n, partition=name)
            producer.send_batch("t", [b"%d" % n for n in range(50, 100)], partition=name)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send_some, range(4)))
        producer.flush()
        assert len(client_threads()) == 1, "one loop for all clients"
        with SyncConsumer("t", bootstrap=bootstrap, start="earliest") as consumer:
            found: dict[int, list[int]] = {n: [] for n in range(4)}
            for _ in range(400):
                record = next(consumer)
                found[record.partition].append(int(record.value or b""))
        assert all(values == list(range(100)) for values in found.values())


def test_errors_are_raised_in_the_calling_thread(bootstrap):
    with SyncProducer(bootstrap) as producer, pytest.raises(errors.UnknownTopic):
        producer.send("nowhere", b"x")
    with pytest.raises(errors.UnknownTopic):
        SyncConsumer("nowhere", bootstrap=bootstrap)
    with pytest.raises(errors.NoBroker):
        SyncAdmin("127.0.0.1:1", request_timeout_s=0.1)
    assert client_threads() == []


def test_closing_twice_is_harmless(bootstrap):
    admin = SyncAdmin(bootstrap)
    admin.close()
    admin.close()
    assert client_threads() == []
