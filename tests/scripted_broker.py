"""A broker of a few lines that answers produce requests as a test tells it, and keeps what it took.

Its idea of producers' sequences is the real one (`ProducerState`): a record that a client would
lose or double with the real broker, it loses or doubles here.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import asynccontextmanager

from seglog.protocol import api
from seglog.protocol import messages as m
from seglog.protocol.batch import decode_batch
from seglog.protocol.errors import SeglogError
from seglog.protocol.header import check_produced
from seglog.server.storage.producer_state import ProducerState

#: Instead of an answer: called first; an error that it returns is the answer, and nothing is kept.
Step = Callable[["ScriptedBroker"], SeglogError | None]


class ScriptedBroker:
    def __init__(self) -> None:
        self.partitions = {"t": 1}
        self.values: defaultdict[tuple[str, int], list[bytes | None]] = defaultdict(list)
        self.states: defaultdict[tuple[str, int], ProducerState] = defaultdict(ProducerState)
        self.steps: deque[Step | None] = deque()  # for each batch that comes
        self.epochs = 0
        self.batches = 0
        self.bootstrap = ""
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def forget_producers(self) -> None:
        self.states.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                envelope = api.decode_envelope(await reader.readexactly(length))
                which, request = api.decode_request(envelope)
                answer = api.encode_response(
                    envelope.correlation_id, getattr(self, which.name)(request)
                )
                writer.write(struct.pack(">I", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    def hello(self, request: m.HelloRequest) -> m.HelloResponse:
        return m.HelloResponse("scripted", 0, "c", [], {})

    def metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        topics = [
            m.TopicMetadata(None, name, name, [0] * self.partitions[name])
            if name in self.partitions
            else m.TopicMetadata(m.WireError(20, f"no topic {name}"), name)
            for name in request.topics or self.partitions
        ]
        return m.MetadataResponse([m.BrokerAddress(0, "127.0.0.1", self._port)], topics)

    def init_producer(self, request: m.InitProducerRequest) -> m.InitProducerResponse:
        if request.producer_id < 0:
            return m.InitProducerResponse(7, 0)
        self.epochs += 1
        return m.InitProducerResponse(request.producer_id, request.producer_epoch + 1)

    def produce(self, request: m.ProduceRequest) -> m.ProduceResponse:
        return m.ProduceResponse([self._append(batch) for batch in request.batches])

    def _append(self, produced: m.ProduceBatch) -> m.ProduceResult:
        self.batches += 1
        where = (produced.topic, produced.partition)
        try:
            step = self.steps.popleft() if self.steps else None
            refused = step(self) if step is not None else None
            if refused is not None:
                raise refused
            header = check_produced(produced.batch)
            state = self.states[where]
            known = state.check(header) if header.is_idempotent else None
            if known is not None:
                return m.ProduceResult(None, known.base_offset, known.append_time_us)
            offset = len(self.values[where])
            if header.is_idempotent:
                state.add(header, offset, 1)
            self.values[where] += decode_batch(bytes(produced.batch), verify=False).values
            return m.ProduceResult(None, offset, 1)
        except SeglogError as error:
            return m.ProduceResult(m.WireError.of(error))


@asynccontextmanager
async def scripted_broker():
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker._port = server.sockets[0].getsockname()[1]
    broker.bootstrap = f"127.0.0.1:{broker._port}"
    try:
        yield broker
    finally:
        server.close()
        for writer in list(broker._writers):
            writer.transport.abort()
        await server.wait_closed()
