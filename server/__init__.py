"""The broker: it takes requests, appends batches through one writer and serves readers."""
