"""What the entries of `service` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from maniflex.errors import CallbackFailed, ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Seat, require_field
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware

BODIES = frozenset({Operation.CREATE, Operation.UPDATE})


class ServiceEntry(Entry):
    """An entry that sets values of a create or an update; a request without a body passes."""

    homes: ClassVar = {"service": ANYWHERE}
    acts_for = BODIES
    in_framework_tables = False
    sets: str = ""  # the field it writes
    fills_new: ClassVar[bool] = False  # a new record has a value of its own in that field, sent or not
    docs = describe_nothing

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if model is None or operation not in BODIES else self.of_model(model, operation)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        """The middleware for one model; None where checks do the work."""
        raise NotImplementedError

    def fills(self, seat: Seat) -> Iterable[tuple[ModelMeta, str]]:
        if self.fills_new:
            for model in seat.models:
                yield model, require_field(model, self.sets).name

    def problems(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            if self.sets and require_field(model, self.sets).name in ("id", "created_at", "updated_at"):
                yield f"{model.name}.{self.sets} is assigned by the framework"
            yield from (f"{model.name}: {problem}" for problem in self.model_problems(model))

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        """What it cannot do to one model."""
        return ()


def set_value(ctx: Context, field: FieldMeta, value: Any) -> None:
    """Set a field; a value that it cannot hold is the server's fault and not the client's."""
    try:
        ctx.set_field(field.name, value)
    except ValidationFailed as error:
        raise CallbackFailed(f"{ctx.model.name}.{field.name} cannot hold the value that was set") from error
