"""Bitmaps for tests: written by the Java library, made from plain sets, and shown as plain sets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from fluss.server.merge.roaring import Bitmap, read_bitmap32, read_bitmap64, write_bitmap32, write_bitmap64
from fluss.server.merge.roaring_containers import ARRAY, BITMAP, Container

READERS = {32: read_bitmap32, 64: read_bitmap64}
WRITERS = {32: write_bitmap32, 64: write_bitmap64}


@dataclass(frozen=True)
class JavaBitmap:
    """A set, the bytes that version 1.3.0 of the Java library wrote for it, and ours, which it read as that set."""

    title: str
    bits: int
    numbers: frozenset[int]
    java: bytes
    ours: bytes


def java_bitmaps() -> list[JavaBitmap]:
    samples = json.loads(Path(__file__).with_name("java_bitmaps.json").read_text())
    return [_java_bitmap(sample) for sample in samples]


def _java_bitmap(sample: dict[str, Any]) -> JavaBitmap:
    ranges = [range(first, first + count * step, step) for first, count, step in sample["ranges"]]
    java = _unpacked(sample["java"])
    ours = _unpacked(sample["ours"]) if "ours" in sample else java
    return JavaBitmap(sample["title"], sample["bits"], frozenset(chain(*ranges)), java, ours)


def _unpacked(parts: list[tuple[str, int]]) -> bytes:
    return b"".join(bytes.fromhex(text) * count for text, count in parts)


def container_of(numbers: Iterable[int]) -> Container:
    """Return a set of 16-bit numbers as a container, small ones as arrays and large ones as bits."""
    ordered = sorted(set(numbers))
    if len(ordered) <= 4096:
        return Container(ARRAY, len(ordered), b"".join(number.to_bytes(2, "little") for number in ordered))
    return Container(BITMAP, len(ordered), sum(1 << number for number in ordered).to_bytes(8192, "little"))


def bitmap_of(numbers: Iterable[int]) -> Bitmap:
    by_key = groupby(sorted(numbers), lambda number: number >> 16)
    return {key: container_of(number & 0xFFFF for number in group) for key, group in by_key}


def serialized(bits: int, numbers: Iterable[int]) -> bytes:
    return WRITERS[bits](bitmap_of(numbers))


def container_numbers(container: Container) -> list[int]:
    """Return the numbers of a container, read one by one."""
    content = container.content
    if container.form == BITMAP:
        return [number for number in range(1 << 16) if content[number >> 3] >> (number & 7) & 1]
    words = [int.from_bytes(content[at : at + 2], "little") for at in range(0, len(content), 2)]
    if container.form == ARRAY:
        return words
    runs = zip(words[1::2], words[2::2], strict=True)
    return [number for first, more in runs for number in range(first, first + more + 1)]


def bitmap_numbers(bitmap: Bitmap) -> frozenset[int]:
    return frozenset(key << 16 | number for key, container in bitmap.items() for number in container_numbers(container))


def numbers_in(bits: int, data: bytes) -> frozenset[int]:
    return bitmap_numbers(READERS[bits](data))
