"""Write fluss_pb2.py and its type stub from fluss.proto: `python tools/generate_messages.py [directory]`.

The two files are checked in, so that neither users nor the build need a protobuf compiler. A test generates them again
and compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]  # The package ships no type information.

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src"
# The path below the source root becomes the file's name in the process-wide descriptor pool, so it has to be unique.
PROTO_FILE = "fluss/protocol/messages/fluss.proto"
GENERATED_FILES = ("fluss/protocol/messages/fluss_pb2.py", "fluss/protocol/messages/fluss_pb2.pyi")

# The compiler stamps its own version into the module and makes the module refuse every older runtime. Nothing the
# module calls is newer than the oldest runtime we support, so the stamp is taken out.
_VERSION_STAMPS = (
    re.compile(r"^# Protobuf Python Version: .*\n", re.MULTILINE),
    re.compile(r"^from google\.protobuf import runtime_version as _runtime_version\n", re.MULTILINE),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?: .*\n)*\)\n", re.MULTILINE),
)


def generate(target_root: Path) -> list[Path]:
    """Write both files below ``target_root``, at the same relative paths as in the source tree."""
    mypy_plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    arguments = [
        "protoc",
        f"--proto_path={SOURCE_ROOT}",
        f"--plugin=protoc-gen-mypy={mypy_plugin}",
        f"--python_out={target_root}",
        f"--mypy_out={target_root}",
        PROTO_FILE,
    ]
    exit_code = protoc.main(arguments)
    if exit_code != 0:
        raise SystemExit(f"protoc failed with exit code {exit_code}; its own message is above")
    module, stub = (target_root / name for name in GENERATED_FILES)
    module.write_text(_without_version_stamps(module.read_text(encoding="utf-8")), encoding="utf-8")
    return [module, stub]


def _without_version_stamps(text: str) -> str:
    for pattern in _VERSION_STAMPS:
        text, count = pattern.subn("", text)
        if count != 1:
            raise SystemExit(f"expected {pattern.pattern!r} once in the generated module, found it {count} times")
    return text


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT):
        print(f"wrote {path}")
