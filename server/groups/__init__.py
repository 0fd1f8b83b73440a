"""Consumer groups as pure state machines: who owns which partition, how far a group has read."""
