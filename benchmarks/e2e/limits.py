"""What the machine itself can do with the same bytes: copy them, write them, move them over loopback."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

_RECEIVE_BYTES = 1 << 20


def copy_and_write_seconds(piece: bytes, count: int, *, sync: bool, directory: Path | None = None) -> float:
    """Copy a piece and write the copy, again and again, each followed by fdatasync if ``sync``."""
    with tempfile.TemporaryFile(dir=directory) as file:
        started = time.perf_counter()
        for _ in range(count):
            os.write(file.fileno(), bytearray(piece))
            if sync:
                os.fdatasync(file.fileno())
        return time.perf_counter() - started


def loopback_seconds(piece: bytes, count: int) -> float:
    """Send pieces from one thread to another over a TCP connection, into memory that is kept."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            with socket.create_connection(listener.getsockname()) as sender:
                for _ in range(count):
                    sender.sendall(piece)

        thread = threading.Thread(target=send)
        thread.start()
        receiver, _ = listener.accept()
        with receiver:
            kept = memoryview(bytearray(len(piece) * count))
            position = 0
            started = time.perf_counter()
            while position < len(kept):
                position += receiver.recv_into(kept[position : position + _RECEIVE_BYTES])
            seconds = time.perf_counter() - started
        thread.join()
    return seconds
