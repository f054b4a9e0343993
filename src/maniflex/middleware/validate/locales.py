"""`validate.require_locale`: translations that a text must have."""

from __future__ import annotations

from collections.abc import Iterable

from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.checks import Check
from maniflex.pipeline.entry import Entry, Seat
from maniflex.pipeline.operation import Operation


def require_locale(field: str, *locales: str) -> Entry:
    """Ask for translations of a field. Fields have no locales yet, so it stops the start."""
    return LocaleEntry(field, locales)


class LocaleEntry(RuleEntry):
    """Locales that a field must have texts in."""

    name = "validate.require_locale"

    def __init__(self, field: str, locales: tuple[str, ...]) -> None:
        super().__init__()
        self.fields = (field,)
        if not locales:
            self.mistakes.append("name the locales that are needed")

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        yield f"{self.fields[0]} has no locales"

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        return {422: ("MISSING_LOCALE",)}

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        return ()
