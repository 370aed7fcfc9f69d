"""The checked-in protobuf module is what fluss.proto says, and runs on every supported runtime.

It is generated once more into an empty directory and compared.
"""

from __future__ import annotations

from tools.generate_messages import GENERATED_FILES, SOURCE_ROOT, generate


def test_the_checked_in_module_is_what_the_generator_writes(tmp_path):
    generate(tmp_path)
    for name in GENERATED_FILES:
        assert (tmp_path / name).read_text() == (SOURCE_ROOT / name).read_text(), f"{name} is stale: run `make proto`"


def test_the_module_does_not_insist_on_the_runtime_of_its_generator():
    text = (SOURCE_ROOT / GENERATED_FILES[0]).read_text()
    assert "runtime_version" not in text
