"""Partition specs name partitions, and names follow the rules of the server.
Shown with specs against partition keys, and with names at the edges of what is allowed."""

import pytest

from fluss import FlussError, PartitionInfo, PartitionSpec
from fluss.schema.table import (
    check_column_name,
    check_database_name,
    check_partition_spec,
    check_partition_value,
    check_table_name,
    partition_name,
    qualified_partition_name,
    spec_of_partition_name,
)

KEYS = ["day", "region"]
SPEC = PartitionSpec({"region": "EMEA", "day": "2024-01-15"})


def test_a_spec_is_a_value_in_any_order() -> None:
    assert PartitionSpec({"day": "2024-01-15", "region": "EMEA"}) == SPEC
    assert PartitionSpec.of({"day": "2024-01-15", "region": "EMEA"}) == SPEC
    assert PartitionSpec.of(SPEC) is SPEC
    assert SPEC.get_spec_map() == SPEC.spec_map == {"region": "EMEA", "day": "2024-01-15"}
    for wrong in (None, "region=US", [("region", "US")], {"region": 5}, {5: "US"}):
        with pytest.raises(TypeError):
            PartitionSpec(wrong)  # type: ignore[arg-type]


def test_names_follow_the_order_of_the_keys() -> None:
    assert partition_name(SPEC, KEYS) == "2024-01-15$EMEA"
    assert qualified_partition_name(SPEC, KEYS) == "day=2024-01-15/region=EMEA"
    assert spec_of_partition_name("2024-01-15$EMEA", KEYS) == SPEC
    assert PartitionInfo._create(1, SPEC, KEYS).partition_name == "2024-01-15$EMEA"
    with pytest.raises(FlussError, match="has 1 values, but the table is partitioned by") as caught:
        spec_of_partition_name("2024-01-15", KEYS)
    assert caught.value.error_code == 43


@pytest.mark.parametrize(
    "spec", [{}, {"day": "x"}, {"day": "x", "region": "y", "more": "z"}, {"day": "x", "Region": "y"}]
)
def test_a_spec_must_have_exactly_the_partition_keys(spec: dict[str, str]) -> None:
    with pytest.raises(FlussError, match=r"the table is partitioned by \['day', 'region'\]") as caught:
        check_partition_spec(PartitionSpec(spec), KEYS, creating=True)
    assert caught.value.error_code == 43


def test_a_partial_spec_selects_partitions() -> None:
    assert PartitionSpec({"region": "EMEA"}).is_contained_in(SPEC)
    assert PartitionSpec({}).is_contained_in(SPEC)
    assert not PartitionSpec({"region": "US"}).is_contained_in(SPEC)
    assert not PartitionSpec({"zone": "EMEA"}).is_contained_in(SPEC)


def test_reserved_partitions_exist_but_cannot_be_created() -> None:
    spec = PartitionSpec({"day": "__historical__"})
    check_partition_spec(spec, ["day"], creating=False)
    with pytest.raises(FlussError, match="the prefix '__' is reserved"):
        check_partition_spec(spec, ["day"], creating=True)


@pytest.mark.parametrize("name", ["a", "A-z_0", "-", "_x", "9", "x" * 200])
def test_good_names_pass(name: str) -> None:
    check_database_name(name)
    check_table_name(name)
    check_partition_value(name, creating=True)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a.b", "a b", "ü", "a/b", "a$b", "x" * 201, "__x", "a\n", "x" * 100_000]
)
def test_bad_names_are_refused_with_the_code_of_their_kind(name: str) -> None:
    for check, code in ((check_database_name, 16), (check_table_name, 15)):
        with pytest.raises(FlussError, match="is invalid: ") as caught:
            check(name)
        assert caught.value.error_code == code
        assert len(caught.value.message) < 500
    with pytest.raises(FlussError, match=r"Partition value .* is invalid") as caught:
        check_partition_value(name, creating=True)
    assert caught.value.error_code == 43


def test_column_names_of_the_system_are_reserved() -> None:
    for name in ("__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"):
        with pytest.raises(FlussError, match="is reserved") as caught:
            check_column_name(name)
        assert caught.value.error_code == 15
    check_column_name("__Offset")
    check_column_name("any text: really")
