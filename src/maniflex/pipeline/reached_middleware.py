"""Which auth middleware of a reached model a request has still to pass; worked out when it is sealed."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Registration, SpecStep, Step

Registered = Sequence[tuple[Registration, Middleware]]


def middleware_to_pass(
    step: Step | SpecStep,
    model: ModelMeta,
    of_model: Registered,
    passed: Sequence[Middleware],
    route: Registered,
    operation: Operation,
) -> tuple[list[tuple[Registration, Middleware]], bool]:
    """What is left of the model's own, and whether it has to find out anew who is asking.

    `passed` are the functions of the route that count for this model; `route` are all of them.
    """
    forgets = _takes_other_credentials(step, model, of_model, route, operation)
    if forgets:
        passed = [fn for fn in passed if not _judges_caller(fn)]
    if forgets or _exempts_more(route, of_model):
        passed = [fn for fn in passed if not _concerns_identity(fn)]
    return _still_to_pass(of_model, passed), forgets


def is_exemption(fn: Middleware) -> bool:
    """Whether it lets anonymous callers pass the authenticators after it."""
    return isinstance(fn, Entry) and fn.is_exemption


def _takes_other_credentials(
    step: Step | SpecStep, model: ModelMeta, of_model: Registered, route: Registered, operation: Operation
) -> bool:
    """Whether an identity of the route may come from an authenticator that the model does not have.

    A write only names records of the model: for that, authenticators of the model's writes count too.
    """
    own_readers = [fn for _, fn in of_model if _reads_credential(fn)]
    strange_readers = [fn for _, fn in route if _reads_credential(fn) and fn not in own_readers]
    if operation in Operation.WRITES and strange_readers:
        of_any_operation = [r.fn for r in step.registrations if r.models is None or model.name in r.models]
        strange_readers = [fn for fn in strange_readers if fn not in of_any_operation]
    return bool(own_readers and strange_readers)


def _still_to_pass(
    of_model: Registered, passed: Sequence[Middleware]
) -> list[tuple[Registration, Middleware]]:
    """The middleware of a model that a request has not passed; an authenticator keeps its exemptions.

    They are passed again, because what the route was exempted from says nothing of this model.
    """
    own = [pair for pair in of_model if pair[1] not in passed]
    if not any(isinstance(fn, Entry) and fn.is_authenticator for _, fn in own):
        return own
    return [pair for pair in of_model if pair in own or is_exemption(pair[1])]


def _exempts_more(route: Registered, of_model: Registered) -> bool:
    """Whether an anonymous caller of the route was let pass by an exemption that the model does not have."""
    exemptions = [fn for _, fn in of_model if is_exemption(fn)]
    return any(is_exemption(fn) and fn not in exemptions for _, fn in route)


def _reads_credential(fn: Middleware) -> bool:
    return isinstance(fn, Entry) and fn.reads_credential


def _judges_caller(fn: Middleware) -> bool:
    return isinstance(fn, Entry) and fn.judges_caller


def _concerns_identity(fn: Middleware) -> bool:
    return isinstance(fn, Entry) and (fn.is_authenticator or fn.is_exemption)
