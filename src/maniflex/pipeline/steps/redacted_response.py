"""The response step of a model with fields that some callers may not see.

A caller who sees everything is answered by the usual step; for each set of hidden fields there is a step
of its own, made when it is first needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import Context
from maniflex.pipeline.redactions import NONE
from maniflex.pipeline.serializer import Serializer
from maniflex.pipeline.steps.response import Respond
from maniflex.pipeline.transforms import Transform

_MOST_STEPS = 64


class RedactedRespond(Respond):
    """Answers each caller with the step for what is hidden from them."""

    def __init__(
        self,
        serializer: Serializer,
        computed: Sequence[Computed],
        *,
        etags: bool,
        transforms: Sequence[Transform] = (),
        counts: bool = True,
    ) -> None:
        super().__init__(serializer, computed, etags=etags, transforms=transforms, counts=counts)
        self._model = serializer.meta.cls
        self._usual = Respond(serializer, computed, etags=etags, transforms=transforms, counts=counts)
        self._steps: dict[frozenset[str], Respond] = {}

    def answer_created(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = ctx.runtime.redactions.hidden(ctx, self._model)
        if hidden is NONE:
            return self._usual._answer_one(ctx, 201)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_created(ctx)
        return self._answer_later(ctx, hidden, "answer_created")

    def answer_record(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = ctx.runtime.redactions.hidden(ctx, self._model)
        if hidden is NONE:
            return self._usual._answer_one(ctx, 200)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_record(ctx)
        return self._answer_later(ctx, hidden, "answer_record")

    def answer_list(self, ctx: Context) -> Awaitable[None] | None:
        if ctx.response is not None:
            return None
        hidden = ctx.runtime.redactions.hidden(ctx, self._model)
        if hidden is NONE:
            return self._usual.answer_list(ctx)
        if isinstance(hidden, frozenset):
            return self._step(hidden).answer_list(ctx)
        return self._answer_later(ctx, hidden, "answer_list")

    async def _answer_later(self, ctx: Context, waiting: Awaitable[frozenset[str]], name: str) -> None:
        hidden = await waiting
        outcome = getattr(self._step(hidden), name)(ctx)
        if outcome is not None:
            await outcome

    def _step(self, hidden: frozenset[str]) -> Respond:
        if not hidden:
            return self._usual
        step = self._steps.get(hidden)
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            computed = [field for field in self._computed if field.name not in hidden]
            step = self._steps[hidden] = Respond(
                self._serializer.without(hidden),
                computed,
                etags=self._etags,
                transforms=self._transforms,
                counts=self._counts,
            )
        return step
