"""Seglog as a source and sink of Spark Structured Streaming."""
