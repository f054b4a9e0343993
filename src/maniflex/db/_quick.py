"""Which statements are known to be quick, so that they need not stand behind slow ones.

A lookup by primary key is quick by its nature. Any other statement is taken for quick after a quick run,
and no longer after a slow one; on a busy machine even a quick one takes long now and then.
"""

from __future__ import annotations

from maniflex.sql.statement import LookupText

QUICK_SECONDS = 0.05
MOST_TEXTS = 4096


class QuickTexts:
    """Texts of statements whose last run was quick; ask `knows`, tell `note`."""

    __slots__ = ("_within", "texts")

    def __init__(self, within: float = QUICK_SECONDS) -> None:
        self._within = within
        self.texts: set[str] = set()

    def knows(self, text: str) -> bool:
        """Whether the statement is taken for quick."""
        return text in self.texts or type(text) is LookupText

    def note(self, text: str, seconds: float) -> None:
        """Remember how long a run took."""
        if seconds >= self._within:
            self.forget(text)
            return
        self.remember(text)

    def forget(self, text: str) -> None:
        """Take the statement for slow, unless it is a lookup."""
        if type(text) is not LookupText:
            self.texts.discard(text)

    def remember(self, text: str) -> None:
        if len(self.texts) >= MOST_TEXTS:
            self.texts.clear()
        self.texts.add(text)
