"""Steps beside the default ones of an endpoint: where they stand, and that none is left out unnoticed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from maniflex.config import Trace
from maniflex.pipeline.chain import AddedStep, Composer, Default, StepPlace
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Pipeline


class _Passed(list[str]):
    """The steps that ran; middleware of the application notes on it that it was entered."""

    entered = ""


def a_step(name: str) -> Default:
    def run(ctx: Any) -> None:
        ctx.append(name)

    return run


def the_composer(pipeline: Pipeline) -> Composer:
    return Composer(pipeline, Trace(), logging.getLogger(__name__))


async def passed_steps(composer: Composer, **defaults: Default | AddedStep) -> list[str]:
    passed: Any = _Passed()
    handler = composer.steps(("validate", "db"), defaults, None, Operation.LIST, item=False)
    await handler(passed)
    return passed  # type: ignore[no-any-return]  # a list in the place of a context


async def test_a_step_stands_at_its_place_beside_the_default_one() -> None:
    passed = await passed_steps(
        the_composer(Pipeline()),
        last=AddedStep(a_step("last"), "validate", StepPlace.LAST),
        behind=AddedStep(a_step("behind"), "validate", StepPlace.BEHIND),
        replaced=AddedStep(a_step("replaced"), "validate", StepPlace.BEHIND_REPLACED),
        first=AddedStep(a_step("first"), "validate", StepPlace.FIRST),
        validate=a_step("validate"),
        db=a_step("db"),
    )

    assert passed == ["first", "validate", "behind", "last", "db"]


async def test_a_step_behind_what_replaces_the_default_runs_where_it_is_replaced() -> None:
    pipeline = Pipeline()

    async def own(ctx: Any, next: Any) -> None:
        ctx.append("own")
        await next()

    async def after(ctx: Any, next: Any) -> None:
        ctx.append("after")
        await next()

    pipeline.validate.register(own, at="replace")
    pipeline.validate.register(after, at="after")
    passed = await passed_steps(
        the_composer(pipeline),
        validate=a_step("validate"),
        rules=AddedStep(a_step("replaced"), "validate", StepPlace.BEHIND_REPLACED),
        files=AddedStep(a_step("last"), "validate", StepPlace.LAST),
        db=a_step("db"),
    )

    assert passed == ["own", "replaced", "after", "last", "db"]


@pytest.mark.parametrize(
    "stray",
    [a_step("judge"), AddedStep(a_step("judge"), "nowhere", StepPlace.BEHIND)],
    ids=["default", "added"],
)
async def test_a_step_without_a_place_is_refused(stray: Default | AddedStep) -> None:
    with pytest.raises(ValueError, match="'policies' has no place"):
        await passed_steps(the_composer(Pipeline()), validate=a_step("validate"), policies=stray)
