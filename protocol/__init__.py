"""What travels and is stored: batches, frames, messages, errors. Pure: no I/O, no asyncio."""
