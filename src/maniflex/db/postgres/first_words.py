"""What a statement does to its session and transaction, by its first words.

Before them may be blanks, empty statements and comments, which PostgreSQL nests. What still gets past is told
by the tag of the server's answer.

>>> first_words("/* a /* b */ c */ ; Rollback -- d\\n TO here")
('rollback', 'to')
"""

from __future__ import annotations

import re

from maniflex.errors import DatabaseError

_BLANKS = re.compile(r"(?:[\s;]|--[^\r\n]*)*+")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_WORD = re.compile(r"\w*")

_KEPT = frozenset(("select", "insert", "update", "delete", "with", "merge", "values"))
_CONTROLS = frozenset(("begin", "start", "commit", "end", "abort"))
_CHANGES = frozenset(("reset", "listen", "unlisten", "prepare", "deallocate", "discard", "load", "declare"))
_LOCAL = frozenset(("local", "transaction", "constraints"))
# PostgreSQL lets a transaction that only reads do these.
_MAINTAINS = frozenset(("analyze", "analyse", "reindex", "cluster", "copy"))
_END_TAGS = (b"COMMIT", b"ROLLBACK", b"PREPARE TRANSACTION")

Words = tuple[str, str]


def first_words(text: str) -> Words:
    """The first two words in lower case; empty where there is something else."""
    start = _skip(text, 0)
    end = _word_end(text, start)
    second = _skip(text, end)
    return text[start:end].lower(), text[second : _word_end(text, second)].lower()


def is_worth_keeping(words: Words) -> bool:
    """Whether a statement is likely to come again, and does nothing to its session."""
    return words[0] in _KEPT


def changes_session(words: Words) -> bool:
    first, second = words
    return first in _CHANGES or (first == "set" and second not in _LOCAL)


def maintains(words: Words) -> bool:
    """Whether a statement writes to the disk although it changes no row."""
    return words[0] in _MAINTAINS


def refuse_transaction_control(words: Words) -> None:
    first, second = words
    is_rollback = first == "rollback" and second != "to"
    if first in _CONTROLS or is_rollback or words == ("prepare", "transaction"):
        raise _ends_transaction()


def refuse_end(tag: bytes | None) -> None:
    """Refuse what ended a transaction, as the answer says; there is no tag while there are more rows."""
    if tag and tag.startswith(_END_TAGS):
        raise _ends_transaction()


def _ends_transaction() -> DatabaseError:
    return DatabaseError("begin and end transactions with transaction(), not with SQL")


def _skip(text: str, at: int) -> int:
    """Where the blanks and comments from `at` on have their end."""
    at = _end(_BLANKS, text, at)
    while text.startswith("/*", at):
        at = _end(_BLANKS, text, _comment_end(text, at))
    return at


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(text)


def _word_end(text: str, at: int) -> int:
    return _end(_WORD, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
