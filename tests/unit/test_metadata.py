"""What a client remembers of topics: those that are there, and a bounded number that are not."""

import pytest

from seglog.client.metadata import MAX_ERRORS, Metadata
from seglog.protocol.errors import BadTopicName, UnknownTopic
from seglog.protocol.messages import MetadataResponse, TopicMetadata, WireError


def test_topics_that_are_not_there_are_remembered_up_to_a_bound():
    metadata = Metadata()
    error = WireError.of(BadTopicName("not a name"))
    for number in range(MAX_ERRORS + 10):
        metadata.update(MetadataResponse([], [TopicMetadata(error, f"t{number}")]))

    with pytest.raises(BadTopicName):
        metadata.partition_count(f"t{MAX_ERRORS + 9}")
    with pytest.raises(UnknownTopic):  # forgotten, and unknown as one never asked for
        metadata.partition_count("t0")
