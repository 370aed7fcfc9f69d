"""Go through the pieces of an SQL statement, and say at which one it cannot be understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from fluss.spark.sql.statements import Name
from fluss.spark.sql.text import Kind, Token, fail


class Cursor:
    """Goes through the tokens of a statement. ``take_...`` goes on if the next token fits, and says whether it did.

    What is expected and not there is a FlussError, with ``example`` as the right form.
    """

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self._tokens = tokens
        self._index = 0
        self.example: str | None = None

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def skip(self, count: int) -> None:
        """Go past words that are known to be there."""
        self._index += count

    def at_end(self) -> bool:
        return self.peek().kind is Kind.END

    def take_word(self, *words: str) -> str | None:
        """Return which of these words is next, if one is."""
        return self.take().value.upper() if self.peek().is_word(*words) else None

    def take_words(self, *words: str) -> bool:
        """Go past several words if they are next, all of them."""
        if not all(self.peek(index).is_word(word) for index, word in enumerate(words)):
            return False
        self._index += len(words)
        return True

    def take_symbol(self, symbol: str) -> bool:
        if not self.peek().is_symbol(symbol):
            return False
        self._index += 1
        return True

    def expect_words(self, *words: str) -> None:
        if not self.take_words(*words):
            self.fail(f"expected {' '.join(words)}, found {self.shown()}")

    def expect_symbol(self, symbol: str) -> None:
        if not self.take_symbol(symbol):
            self.fail(f"expected '{symbol}', found {self.shown()}")

    def identifier(self, what: str) -> str:
        if not self.peek().is_name:
            self.fail(f"expected {what}, found {self.shown()}")
        return self.take().value

    def string(self, what: str) -> str:
        if self.peek().kind is not Kind.STRING:
            self.fail(f"expected {what} in quotes, found {self.shown()}")
        return self.take().value

    def name(self, what: str) -> Name:
        position = self.peek().start
        parts = [self.identifier(what)]
        while self.take_symbol("."):
            parts.append(self.identifier(what))
        return Name(tuple(parts), position)

    def peek_name(self) -> Name | None:
        """Return the name that is next, if there is one, and stay before it."""
        index = self._index
        parts: list[str] = []
        while self._tokens[index].is_name:
            parts.append(self._tokens[index].value)
            if not self._tokens[index + 1].is_symbol("."):
                break
            index += 2
        return Name(tuple(parts), self.peek().start) if parts else None

    def listed(self, item: Callable[[], None]) -> None:
        """Read items separated by commas, in parentheses."""
        self.expect_symbol("(")
        item()
        while self.take_symbol(","):
            item()
        if not self.take_symbol(")"):
            self.fail(f"expected ',' or ')', found {self.shown()}")

    def names(self, what: str) -> tuple[str, ...]:
        names: list[str] = []
        self.listed(lambda: names.append(self.identifier(what)))
        return tuple(names)

    def shown(self) -> str:
        token = self.peek()
        return "the end of the statement" if self.at_end() else repr(self.text[token.start : token.stop])

    def fail(self, problem: str) -> NoReturn:
        self.fail_at(self.peek(), problem)

    def fail_at(self, token: Token, problem: str) -> NoReturn:
        fail(self.text, token.start, problem, self.example)
