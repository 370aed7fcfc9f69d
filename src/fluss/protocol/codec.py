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

    __slots__ = ("_bytes_max", "_entries_max", "_lists", "_message_type", "_texts")

    def __init__(
        self, message_type: type[MessageT], *, bytes_max: int | None = None, entries_max: int | None = None
    ) -> None:
        self._message_type = message_type
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._lists = _places(message_type.DESCRIPTOR, _is_list)
        self._texts = _places(message_type.DESCRIPTOR, _is_text)

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
        if self._texts is not None:
            _check_texts(message, self._texts)
        return message

    def _check_entries(self, message: MessageT, lists: _Places, entries_max: int) -> None:
        if _count_entries(message, lists, entries_max) > entries_max:
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
class _Places:
    """Where one message type has fields of some kind: itself, and in the messages inside it."""

    message_name: str
    single: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    children: list[tuple[str, _Places]] = field(default_factory=list)
    child_lists: list[tuple[str, _Places]] = field(default_factory=list)


def _places(
    descriptor: Any, is_wanted: Callable[[_FieldProto], bool], known: dict[str, _Places] | None = None
) -> _Places | None:
    """Find the fields of some kind in a message type and in everything inside it; None if there are none."""
    known = {} if known is None else known
    if not _contains(descriptor, is_wanted, set()):
        return None
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    # Entered before its fields are looked at, because predicates contain predicates.
    places = known[descriptor.full_name] = _Places(descriptor.name)
    for item in _fields(descriptor):
        if is_wanted(item):
            (places.repeated if _is_list(item) else places.single).append(item.name)
        if item.type == _FieldProto.TYPE_MESSAGE:
            child = _places(descriptor.fields_by_name[item.name].message_type, is_wanted, known)
            if child is not None:
                (places.child_lists if _is_list(item) else places.children).append((item.name, child))
    return places


def _count_entries(message: Any, lists: _Places, enough: int) -> int:
    """Return how many entries all lists of a message have; some number above ``enough`` if there are more than that."""
    total = sum(len(getattr(message, name)) for name in lists.repeated)
    for name, child_lists in lists.children:
        if message.HasField(name):
            total += _count_entries(getattr(message, name), child_lists, enough)
    if total <= enough:
        for name, child_lists in lists.child_lists:
            if not child_lists.children and not child_lists.child_lists and len(child_lists.repeated) == 1:
                # As in most messages for many buckets: counted without a call for each of them.
                (list_name,) = child_lists.repeated
                total += sum([len(getattr(child, list_name)) for child in getattr(message, name)])
                continue
            for child in getattr(message, name):
                total += _count_entries(child, child_lists, enough)
                if total > enough:
                    return total
    return total


def _check_texts(message: Any, texts: _Places) -> None:
    """Refuse text that is not UTF-8: proto2 parsers let it pass, and reading the attribute gives bytes then."""
    for name in texts.single:
        if type(getattr(message, name)) is not str:
            raise CorruptMessageError(f"{texts.message_name}.{name} is not valid UTF-8")
    for name in texts.repeated:
        if any(type(text) is not str for text in getattr(message, name)):
            raise CorruptMessageError(f"{texts.message_name}.{name} contains text that is not valid UTF-8")
    for name, child_texts in texts.children:
        if message.HasField(name):
            _check_texts(getattr(message, name), child_texts)
    for name, child_texts in texts.child_lists:
        for child in getattr(message, name):
            _check_texts(child, child_texts)


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
