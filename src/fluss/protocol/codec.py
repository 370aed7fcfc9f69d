"""Messages to bytes and back, for messages that go through the official protobuf runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message

from fluss.buffers import BytesLike
from fluss.errors import CorruptMessageError

# A message or frame in pieces that follow each other on the wire. Bulk payloads stay views of the caller's memory.
Parts: TypeAlias = list[BytesLike]

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Message)

# Messages without record batches are small. The runtime may need 30 times the memory of a hostile message (a long list
# of empty entries), which this limit keeps below half a gigabyte.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

# Entries of all lists in one request, those inside other lists included. An entry can be as small as two bytes, but
# costs its handler microseconds and often a hundred bytes in the answer. The largest table has fewer buckets.
ENTRIES_MAX = 131_072

# Listing the missing fields is a help for people. It is left out for long messages, where the list could be endless.
_EXPLAINED_BYTES_MAX = 64 * 1024

_FieldProto = descriptor_pb2.FieldDescriptorProto


class Codec(Protocol[T]):
    """How one message type becomes bytes and comes back."""

    @property
    def message_name(self) -> str: ...

    @property
    def keeps_body(self) -> bool:
        """Whether decoded messages are views of the bytes they were decoded from."""
        ...

    def encode(self, message: T) -> Parts: ...

    def decode(self, body: BytesLike) -> T:
        """Raise CorruptMessageError for anything that is not a complete message of this type."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class EncodedMessage:
    """A message of some type in its encoded form, made in a faster way than the runtime has."""

    message_type: type[Message]
    parts: Parts


class MessageCodec(Generic[MessageT]):
    """The codec of a generated message class."""

    __slots__ = ("_bytes_max", "_entries_max", "_lists", "_message_type", "_strings")

    def __init__(
        self, message_type: type[MessageT], *, bytes_max: int | None = None, entries_max: int | None = None
    ) -> None:
        self._message_type = message_type
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._lists = _lists_of(message_type.DESCRIPTOR, {})
        self._strings = _strings_of(message_type.DESCRIPTOR, {})

    @property
    def message_name(self) -> str:
        return self._message_type.DESCRIPTOR.name

    @property
    def message_type(self) -> type[MessageT]:
        return self._message_type

    @property
    def keeps_body(self) -> bool:
        return False

    def encode(self, message: MessageT | EncodedMessage) -> Parts:
        if isinstance(message, EncodedMessage) and message.message_type is self._message_type:
            return message.parts
        if type(message) is not self._message_type:
            raise TypeError(f"expected a {self.message_name}, got {type(message).__name__}")
        return [message.SerializeToString()]

    def decode(self, body: BytesLike) -> MessageT:
        if self._bytes_max is not None and len(body) > self._bytes_max:
            raise CorruptMessageError(
                f"a {self.message_name} of {len(body)} bytes exceeds the limit of {self._bytes_max}; send less at once"
            )
        try:
            message = self._message_type.FromString(bytes(body))
        except UnicodeDecodeError as error:
            # Only the pure-Python runtime looks at text here.
            raise CorruptMessageError(f"a {self.message_name} contains text that is not valid UTF-8") from error
        except (DecodeError, RecursionError) as error:
            # Older pure-Python runtimes follow nested messages as deep as the interpreter allows.
            raise CorruptMessageError(f"undecodable {self.message_name}: {error}") from error
        if self._entries_max is not None and self._lists is not None:
            self._check_entries(message, self._lists, self._entries_max)
        if not message.IsInitialized():
            raise CorruptMessageError(self._missing_fields_text(message, len(body)))
        if self._strings is not None:
            self._strings.check(message)
        return message

    def _check_entries(self, message: MessageT, lists: _Lists, entries_max: int) -> None:
        if lists.count(message, entries_max) > entries_max:
            raise CorruptMessageError(
                f"a {self.message_name} has more than {entries_max} entries; send it in several pieces"
            )

    def _missing_fields_text(self, message: Any, byte_count: int) -> str:
        if byte_count > _EXPLAINED_BYTES_MAX:
            return f"a {self.message_name} lacks required fields"
        names = message.FindInitializationErrors()
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        return f"a {self.message_name} lacks the required fields {shown}"


@dataclass(slots=True)
class _Lists:
    """Where one message type holds lists, so that their entries can be counted without looking at each."""

    own: list[str] = field(default_factory=list)
    children: list[tuple[str, _Lists]] = field(default_factory=list)
    child_lists: list[tuple[str, _Lists]] = field(default_factory=list)

    def count(self, message: Any, enough: int) -> int:
        """Return how many entries there are; some number above ``enough`` if there are more than that."""
        total = sum(len(getattr(message, name)) for name in self.own)
        for name, lists in self.children:
            if message.HasField(name):
                total += lists.count(getattr(message, name), enough)
        if total <= enough:
            for name, lists in self.child_lists:
                for child in getattr(message, name):
                    total += lists.count(child, enough)
                    if total > enough:
                        return total
        return total


def _lists_of(descriptor: Any, known: dict[str, _Lists]) -> _Lists | None:
    """Collect the lists of a message type and of everything inside it; None if there are none."""
    if not _contains(descriptor, _is_list, set()):
        return None
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    lists = known[descriptor.full_name] = _Lists()
    for item in _fields(descriptor):
        if _is_list(item):
            lists.own.append(item.name)
        if item.type == _FieldProto.TYPE_MESSAGE:
            child = _lists_of(descriptor.fields_by_name[item.name].message_type, known)
            if child is not None:
                (lists.child_lists if _is_list(item) else lists.children).append((item.name, child))
    return lists


@dataclass(slots=True)
class _Strings:
    """Where one message type holds text, so that text which is not UTF-8 can be refused.

    proto2 parsers let such text pass, and reading the attribute then gives bytes instead of str.
    """

    message_name: str
    single: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    children: list[tuple[str, _Strings]] = field(default_factory=list)
    child_lists: list[tuple[str, _Strings]] = field(default_factory=list)

    def check(self, message: Any) -> None:
        for name in self.single:
            if type(getattr(message, name)) is not str:
                raise CorruptMessageError(f"{self.message_name}.{name} is not valid UTF-8")
        for name in self.repeated:
            if any(type(text) is not str for text in getattr(message, name)):
                raise CorruptMessageError(f"{self.message_name}.{name} contains text that is not valid UTF-8")
        for name, strings in self.children:
            if message.HasField(name):
                strings.check(getattr(message, name))
        for name, strings in self.child_lists:
            for child in getattr(message, name):
                strings.check(child)


def _strings_of(descriptor: Any, known: dict[str, _Strings]) -> _Strings | None:
    """Collect the text fields of a message type and of everything inside it; None if there are none."""
    if not _contains(descriptor, _is_text, set()):
        return None
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    # Entered before its fields are looked at, because predicates contain predicates.
    strings = known[descriptor.full_name] = _Strings(descriptor.name)
    for item in _fields(descriptor):
        is_repeated = _is_list(item)
        if _is_text(item):
            (strings.repeated if is_repeated else strings.single).append(item.name)
        elif item.type == _FieldProto.TYPE_MESSAGE:
            child = _strings_of(descriptor.fields_by_name[item.name].message_type, known)
            if child is not None:
                (strings.child_lists if is_repeated else strings.children).append((item.name, child))
    return strings


def _is_text(item: _FieldProto) -> bool:
    return item.type == _FieldProto.TYPE_STRING


def _is_list(item: _FieldProto) -> bool:
    return item.label == _FieldProto.LABEL_REPEATED


def _contains(descriptor: Any, is_wanted: Callable[[_FieldProto], bool], visited: set[str]) -> bool:
    """Whether a message type, or anything inside it, has a field of some kind."""
    visited.add(descriptor.full_name)
    for item in _fields(descriptor):
        if is_wanted(item):
            return True
        if item.type == _FieldProto.TYPE_MESSAGE:
            child = descriptor.fields_by_name[item.name].message_type
            if child.full_name not in visited and _contains(child, is_wanted, visited):
                return True
    return False


def _fields(descriptor: Any) -> list[descriptor_pb2.FieldDescriptorProto]:
    """Describe the fields by their protos, whose attributes are the same in every supported runtime."""
    proto = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(proto)
    return list(proto.field)
