"""What the entries of `validate` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.checks import Check
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation

BODIES = frozenset({Operation.CREATE, Operation.UPDATE})  # operations that bring a body


class RuleEntry(Entry):
    """An entry that is a rule for the body of a create or an update, and no middleware."""

    homes: ClassVar = {"validate": ANYWHERE}
    acts_for = BODIES
    in_framework_tables = False

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        return self.rules(model, operation) if operation in BODIES else ()

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals=self.codes(operation)) if operation in BODIES else None

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        """The codes of its refusals of a create or an update, by status."""
        return {422: ("VALIDATION_FAILED",)}

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        """The rules for the body of one model."""
        raise NotImplementedError

    def problems(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            yield from (f"{model.name}: {problem}" for problem in self.model_problems(model, seat))

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        """What cannot be judged of one model."""
        return ()
