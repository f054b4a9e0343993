"""The text of a search that leaves some of the searchable fields out."""

from __future__ import annotations

from maniflex.model.meta import FieldMeta


class SearchText(str):
    """A text that is looked for in all searchable fields but these.

    A kind of `str`, so that what is left out goes along wherever the text goes.
    """

    __slots__ = ("without",)

    without: tuple[FieldMeta, ...]

    def __new__(cls, text: str, without: tuple[FieldMeta, ...]) -> SearchText:
        self = super().__new__(cls, text)
        self.without = without
        return self

    def __repr__(self) -> str:
        return f"SearchText({str(self)!r}, {[f.name for f in self.without]})"


def left_out(text: str | None) -> tuple[FieldMeta, ...]:
    """The fields that a search for this text leaves out."""
    return text.without if isinstance(text, SearchText) else ()


def search_shape(text: str | None) -> tuple[str, ...] | None:
    """What of a search decides the text of its statement."""
    return None if text is None else tuple([f.name for f in left_out(text)])
