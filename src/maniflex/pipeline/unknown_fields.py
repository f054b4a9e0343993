"""Keys of a body that name no field: refused by an entry or by the setting `unknown_fields`."""

from __future__ import annotations

from maniflex.model.messages import unknown_field
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.checks import Draft, Problems, ValueRule
from maniflex.pipeline.context import Context
from maniflex.pipeline.steps.validate import is_known_relation


def known_names(model: ModelMeta) -> frozenset[str]:
    """The keys that a body of the model may have; relations have an answer of their own."""
    relations = (name for name, relation in model.relations.items() if is_known_relation(relation, model))
    return frozenset(f.api for f in model.fields if not f.hidden) | frozenset(relations)


class UnknownFields(ValueRule):
    """Refuses every key of the body that names no field."""

    def __init__(self, model: ModelMeta) -> None:
        self._known = known_names(model)
        self._fields = [f.api for f in model.fields if not f.hidden]

    def judge(self, ctx: Context, draft: Draft) -> Problems:
        body = ctx._body
        if body is None:
            return ()
        # A hidden field is refused like one that does not exist, though its key was dropped before.
        names = body if ctx.sent_names is None else ctx.sent_names
        if self._known.issuperset(names):
            return ()
        unknown = [n for n in names if n not in self._known and (n not in body or body.is_from_client(n))]
        return [unknown_field(name, self._fields) for name in unknown if name not in ctx.extra_names]
