"""`auth.enforce`: rules about single rows, as functions of the caller and the record."""

from __future__ import annotations

from typing import Any

from maniflex.middleware.arguments import is_function
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import ask
from maniflex.pipeline.rules.policies import Policy, PolicyEntry
from maniflex.pipeline.rules.scopes import Where


def enforce(policy: Policy, *, where: Where | None = None) -> Enforce:
    """Let callers touch the rows that `policy(ctx, record)` allows: others are 403, lists leave them out.

    `where(ctx)` says the same in conditions, which bind lists, counts, aggregates and searches in SQL.
    """
    return Enforce(policy, where)


def all_of(*policies: Policy) -> Policy:
    """A policy that allows what all of these allow; the first that denies is the last one asked."""
    return _Joined(policies, decisive=False)


def any_of(*policies: Policy) -> Policy:
    """A policy that allows what one of these allows; the first that allows is the last one asked."""
    return _Joined(policies, decisive=True)


def not_(policy: Policy) -> Policy:
    """A policy that allows what this one denies."""
    return _Negated(policy)


class Enforce(PolicyEntry):
    """A policy on the rows of models."""

    name = "auth.enforce"

    def __init__(self, policy: Any, where: Any) -> None:
        super().__init__(policy, where)
        self.mistakes += _mistakes(policy)
        if where is not None and not is_function(where, 1):
            self.mistakes.append(f"where is a function of (ctx), not {where!r}")


class _Combined:
    """A policy made of others."""

    word = ""

    def __init__(self, policies: tuple[Policy, ...]) -> None:
        self.policies = policies
        self.__qualname__ = f"auth.{self.word}"


class _Joined(_Combined):
    """Policies that are asked in turn until one of them decides."""

    def __init__(self, policies: tuple[Policy, ...], *, decisive: bool) -> None:
        self.word = "any_of" if decisive else "all_of"
        super().__init__(policies)
        self._decisive = decisive

    async def __call__(self, ctx: Context, record: Any) -> bool:
        for policy in self.policies:
            if bool(await ask(ctx, policy, ctx, record)) is self._decisive:
                return self._decisive
        return not self._decisive


class _Negated(_Combined):
    """The opposite of a policy."""

    word = "not_"

    def __init__(self, policy: Policy) -> None:
        super().__init__((policy,))

    async def __call__(self, ctx: Context, record: Any) -> bool:
        return not await ask(ctx, self.policies[0], ctx, record)


def _mistakes(policy: Any) -> list[str]:
    """Why something is no policy; of a combination, the mistakes of its parts."""
    if not isinstance(policy, _Combined):
        return [] if is_function(policy, 2) else [f"a policy is a function of (ctx, record), not {policy!r}"]
    if not policy.policies:
        return [f"auth.{policy.word}() has no policies, so it says nothing"]
    return [mistake for one in policy.policies for mistake in _mistakes(one)]
