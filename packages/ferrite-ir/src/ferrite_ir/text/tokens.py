"""Words of the text form, where they stand, and the error that points at one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

KEYWORDS = frozenset(
    [
        "_",
        "aliases",
        "along",
        "as",
        "at",
        "attend",
        "bitcast",
        "call",
        "cast",
        "complex",
        "contract",
        "descending",
        "do",
        "effects",
        "else",
        "extern",
        "false",
        "for",
        "graph",
        "if",
        "in",
        "index",
        "inf",
        "let",
        "loop",
        "mutates",
        "nan",
        "none",
        "on",
        "reduce",
        "reverse",
        "scan",
        "size",
        "sort",
        "tag",
        "then",
        "top",
        "true",
        "update",
        "where",
        "while",
        "wrap",
    ]
)
"""Words with a meaning of their own; a value, dim or graph with such a name is written with a ``$`` in front."""

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>\$?[^\W\d]\w*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<mark>->|//|\*\*|>=|<=|[()\[\]{}<>|,:=+\-*%.@~])
    """,
    re.VERBOSE,
)


class ParseError(ValueError):
    """Text that is not in the language.

    Attributes:
        reason: what is wrong, without the place.
        line, column: the place, both counted from 1.
    """

    def __init__(self, reason: str, text: str, offset: int, source: str = "") -> None:
        self.reason = reason
        self.line = text.count("\n", 0, offset) + 1
        start = text.rfind("\n", 0, offset) + 1
        self.column = offset - start + 1
        end = text.find("\n", offset)
        shown = text[start : len(text) if end < 0 else end]
        location = f"{source or '<text>'}:{self.line}:{self.column}"
        super().__init__(f"{location}: {reason}\n  {shown}\n  {' ' * (self.column - 1)}^")


@dataclass(frozen=True, slots=True)
class Token:
    """One word: its kind (``name``, ``number``, ``string``, ``mark`` or ``end``), its text and its offset."""

    kind: str
    text: str
    offset: int


def spelled(name: str) -> str:
    """Returns a name as written in the text form."""
    return f"${name}" if name in KEYWORDS else name


def tokenize(text: str, source: str = "") -> list[Token]:
    """Returns the words of a text, without spaces and comments, and an ``end`` token.

    Raises:
        ParseError: a character that starts no word.
    """
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        if found is None:
            raise ParseError(f"unexpected character {text[offset]!r}", text, offset, source)
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found.group(), offset))
        offset = found.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


class Words:
    """The words of a text and the position of the reader.

    Attributes:
        text, source: what is read, and the name of the file it came from ("" if unknown).
        tokens: its words.
        position: index of the next word.
    """

    __slots__ = ("position", "source", "text", "tokens")

    def __init__(self, text: str, source: str = "") -> None:
        self.text, self.source, self.position = text, source, 0
        self.tokens = tokenize(text, source)

    @property
    def next(self) -> Token:
        """Returns the next word and leaves it there."""
        return self.tokens[self.position]

    def sees(self, text: str, ahead: int = 0) -> bool:
        """Returns whether the word ``ahead`` places further on is this one (a string or an escaped name never is)."""
        position = self.position + ahead
        if position >= len(self.tokens):
            return False
        token = self.tokens[position]
        return token.text == text and token.kind != "string"

    def take(self) -> Token:
        """Returns the next word and moves on."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Moves past the next word if it is this one, and returns whether it was."""
        if self.sees(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Returns the next word, which must be this one.

        Raises:
            ParseError: it is another.
        """
        if not self.sees(text):
            raise self.error(f"expected {text!r}, found {self.describe()}")
        return self.take()

    def name(self, what: str = "a name") -> str:
        """Returns the next word, which must be a name that is no keyword (or is escaped by ``$``).

        Raises:
            ParseError: it is something else.
        """
        token = self.next
        if token.kind != "name":
            raise self.error(f"expected {what}, found {self.describe()}")
        if token.text in KEYWORDS:
            raise self.error(
                f"expected {what}, found the keyword {token.text!r}; write ${token.text} for something of that name"
            )
        self.take()
        return token.text.removeprefix("$")

    def describe(self) -> str:
        """Returns the next word for a message."""
        return repr(self.next.text) if self.next.text else "the end of the text"

    def error(self, reason: str, token: Token | None = None) -> ParseError:
        """Returns an error that points at a word, the next one by default."""
        return ParseError(reason, self.text, (token or self.next).offset, self.source)
