"""What of remote storage, and of the disk, backups still need. Shown by the numbers of points alone."""

from __future__ import annotations

from fluss.storage.remote.removal_gate import RemovalGate


def test_without_a_backup_everything_is_released_and_nothing_has_to_be_named() -> None:
    gate = RemovalGate()
    assert gate.is_released(gate.mark())
    assert gate.is_named(gate.mark())


def test_what_a_point_names_is_named_once_the_point_is_made() -> None:
    gate = RemovalGate()
    gate.close()
    begun_before = gate.begin_point()
    mark = gate.mark()
    gate.point_made(begun_before)
    assert not gate.is_named(mark), "the point was begun before, and may have missed it"
    number = gate.begin_point()
    assert not gate.is_named(mark)
    gate.point_made(number)
    assert gate.is_named(mark)
    assert not gate.is_released(mark), "earlier points are kept"
    gate.keep_from(number)
    assert gate.is_released(mark)
