"""Remote log manifests of both server generations are exact JSON, and nothing in them can lead astray.
Random manifests in both directions, the optional fields one by one, and hostile texts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.file_names import TabletLocation
from fluss.storage.log.remote_manifest import (
    RemoteManifest,
    RemoteSegment,
    decode_manifest,
    encode_manifest,
)
from tests.damage import count_refusals

FILE = "metadata/6e94fbd1-c056-446e-859c-77345dddcd96.manifest"
SEGMENT = RemoteSegment("a4421366-4a1d-4c3b-a0f8-0be2e77b1368", 10, 20, 1_722_225_103_853, 2850)
MANIFEST = RemoteManifest(TabletLocation("db", "t", 1001, 1), (SEGMENT,))


def with_fields(changes: dict[str, Any], segment_changes: dict[str, Any] | None = None) -> bytes:
    fields = json.loads(encode_manifest(MANIFEST)) | changes
    if segment_changes is not None:
        fields["remote_log_segments"] = [fields["remote_log_segments"][0] | segment_changes]
    return json.dumps(fields).encode()


@st.composite
def manifests(draw: st.DrawFn) -> RemoteManifest:
    partition = draw(st.sampled_from([(), ("2024$EU", 5)]))
    bounds = sorted(draw(st.lists(st.integers(0, 2**63 - 1), min_size=0, max_size=12)))
    segments = []
    for start, clipped_start, clipped_end, end in zip(*[iter(bounds)] * 4, strict=False):
        clip = draw(st.booleans())
        segments.append(
            RemoteSegment(
                str(draw(st.uuids())),
                start,
                end,
                draw(st.integers(-1, 2**63 - 1)),
                draw(st.integers(0, 2**31 - 1)),
                clipped_start if clip and clipped_start != start else None,
                clipped_end if clip and clipped_end != end else None,
            )
        )
    copied = draw(st.none() | st.integers(0, 2**63 - 1))
    if segments and copied == segments[-1].end_offset:
        copied = None
    return RemoteManifest(TabletLocation("db", "t", 3, 0, *partition), tuple(segments), copied)


@given(manifests())
def test_every_manifest_reads_back(manifest: RemoteManifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_offsets_of_the_newer_generation_are_written_in_their_place() -> None:
    clipped = replace(SEGMENT, clipped_start_offset=12, clipped_end_offset=18)
    manifest = RemoteManifest(MANIFEST.location, (clipped,), 40)
    assert encode_manifest(manifest).decode() == (
        '{"version":1,"database":"db","table":"t","table_id":1001,"bucket_id":1,"highest_copied_end_offset":40,'
        '"remote_log_segments":[{"segment_id":"a4421366-4a1d-4c3b-a0f8-0be2e77b1368","start_offset":10,'
        '"end_offset":20,"logical_start_offset":12,"logical_end_offset":18,"max_timestamp":1722225103853,'
        '"size_in_bytes":2850}]}'
    )
    assert (manifest.start_offset, manifest.end_offset) == (12, 40)


def test_offsets_that_say_nothing_new_are_left_out() -> None:
    same = replace(SEGMENT, clipped_start_offset=10, clipped_end_offset=20)
    assert encode_manifest(RemoteManifest(MANIFEST.location, (same,), 20)) == encode_manifest(MANIFEST)
    assert (MANIFEST.start_offset, MANIFEST.end_offset) == (10, 20)


def test_a_manifest_without_segments_may_still_know_what_was_copied() -> None:
    empty = RemoteManifest(MANIFEST.location, (), 40)
    assert decode_manifest(encode_manifest(empty)) == empty
    assert (empty.start_offset, empty.end_offset) == (None, 40)
    assert RemoteManifest(MANIFEST.location, ()).end_offset is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "it is not valid JSON"),
        (with_fields({"version": 2}), "its version is 2"),
        (with_fields({"database": 7}), "database must be a string, found 7"),
        (with_fields({"table": "\ud800"}), r"table must be a string, found '.ud800'"),
        (with_fields({"database": ".."}), "its names cannot be those of a table"),
        (with_fields({"table": "a/b"}), "its names cannot be those of a table"),
        (with_fields({"partition_name": "p"}), "a partition needs a name and an id"),
        (with_fields({"partition_id": 1}), "a partition needs a name and an id"),
        (with_fields({"partition_name": "../p", "partition_id": 1}), "its names cannot be those of a table"),
        (with_fields({"bucket_id": -1}), "bucket_id must be between 0 and 2147483647"),
        (with_fields({"remote_log_segments": "none"}), "remote_log_segments must be a list of objects, found 'none'"),
        (with_fields({}, {"segment_id": "../../etc"}), "'../../etc' is not a lower-case UUID"),
        (with_fields({}, {"segment_id": SEGMENT.segment_id.upper()}), "is not a lower-case UUID"),
        (with_fields({}, {"start_offset": 21}), "holds the offsets 21 to 20"),
        (with_fields({}, {"logical_start_offset": 9}), "of which 9 to 20 are said to count"),
        (with_fields({}, {"logical_end_offset": 21}), "of which 10 to 21 are said to count"),
        (
            with_fields({}, {"size_in_bytes": 2**31}),
            r"remote_log_segments.0..size_in_bytes must be between 0 and 2147483647",
        ),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The remote log manifest {FILE} is damaged: .*{message}") as refusal:
        decode_manifest(data, FILE)
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_segments_must_ascend() -> None:
    segments = (SEGMENT, replace(SEGMENT, start_offset=19, end_offset=30))
    with pytest.raises(FlussError, match="starts at offset 19, the one before it ends at 20"):
        decode_manifest(encode_manifest(RemoteManifest(MANIFEST.location, segments)))


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    valid = encode_manifest(MANIFEST)
    assert count_refusals(decode_manifest, valid, FlussError) > len(valid)
