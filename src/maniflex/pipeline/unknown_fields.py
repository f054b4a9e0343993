"""Keys of a body that name no field: refused by an entry or by the setting `unknown_fields`."""

from __future__ import annotations

from maniflex.model.messages import unknown_field
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.checks import Draft, Problems, ValueRule
from maniflex.pipeline.context import Context


def known_names(model: ModelMeta) -> frozenset[str]:
    """The keys that a body of the model may have; relations have an answer of their own."""
    return frozenset(f.api for f in model.fields if not f.hidden) | frozenset(model.relations)


class UnknownFields(ValueRule):
    """Refuses every key of the body that names no field."""

    def __init__(self, model: ModelMeta) -> None:
        self._known = known_names(model)
        self._fields = [f.api for f in model.fields if not f.hidden]

    def judge(self, ctx: Context, draft: Draft) -> Problems:
        body = ctx._body
        if body is None or self._known.issuperset(body):
            return ()
        unknown = [name for name in body if name not in self._known and body.is_from_client(name)]
        return [unknown_field(name, self._fields) for name in unknown if name not in ctx.extra_names]
