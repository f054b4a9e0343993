"""Who may do what with runs over REST."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.background.declaring import role_problems, switch_problems
from maniflex.background.runs.handlers import MAX_ATTEMPTS, RunHandlers, is_type
from maniflex.errors import DeclarationError

# The failures whose text the handler wrote for the caller who waits for the run. The text of any other
# exception may quote a driver, a path or another caller's data.
CODES_WITH_TEXT = ("fatal", "retry")


@dataclass(frozen=True, slots=True)
class RunAccess:
    """What an application says about its runs; their routes are in `maniflex.background_api.runs`."""

    admin_role: str = "admin"
    routes: bool = True
    # Types, and prefixes that end with a dot, beside those of public handlers; None: clients submit nothing.
    submit: tuple[str, ...] | None = ()

    def problems(self, handlers: RunHandlers) -> list[str]:
        """The mistakes in the arguments of `work.enable`."""
        problems = [*role_problems(self.admin_role), *switch_problems(routes=self.routes)]
        problems += [
            f"public_submit {one!r}: {why}" for one in self.submit or () if (why := _flaw(one, handlers))
        ]
        return [f"work.enable: {problem}" for problem in problems]

    def is_public(self, type: str, handlers: RunHandlers) -> bool:
        """Whether clients may submit runs of this type, and change their own."""
        handler = handlers.get(type)
        if self.submit is None or type in handlers.hidden_types():
            return False
        if handler is not None and handler.public:
            return True
        return any(type == one or (one.endswith(".") and type.startswith(one)) for one in self.submit)

    def public_types(self, handlers: RunHandlers) -> tuple[str, ...]:
        """The types, and prefixes of types, that clients may submit."""
        if self.submit is None:
            return ()
        return tuple(dict.fromkeys([*(h.type for h in handlers if h.public), *self.submit]))


def public_types(public_submit: Any) -> tuple[str, ...] | None:
    """The types of `enable(public_submit=...)`, None for False; else `DeclarationError`."""
    if public_submit is False:
        return None
    types = (public_submit,) if isinstance(public_submit, str) else public_submit
    if not isinstance(types, Sequence) or not all(isinstance(one, str) for one in types):
        raise DeclarationError(
            "public_submit lists types and prefixes, or is False; `handler(type, public=True)` opens a type"
        )
    return tuple(types)


def _flaw(opened: str, handlers: RunHandlers) -> str | None:
    """Why clients cannot submit what `public_submit` opens, if they cannot."""
    if not is_type(opened):
        return "it is a type such as email.receipt.v1, or a prefix that ends with a dot such as 'email.'"
    if opened in handlers.hidden_types():
        return "it is internal or has dead letters sent to it, so clients do not submit it"
    if "." not in opened and handlers.get(opened) is None:
        # A word is hardly ever a type: what is handled elsewhere has a dotted name.
        return f"there is no handler of this type here; the types that begin with it are '{opened}.'"
    return None


def excesses(
    handlers: RunHandlers, type: str, *, priority: int, max_attempts: int | None, timeout: float | None
) -> Iterator[tuple[str, str]]:
    """What a client asks for beyond what the handler of the type allows: the field and the reason.

    A type that is handled elsewhere allows what a handler allows that says nothing.
    """
    handler = handlers.get(type)
    most = handler.max_attempts if handler is not None else MAX_ATTEMPTS
    urgent = handler.max_priority if handler is not None else 0
    if abs(priority) > urgent:
        bounds = f"from -{urgent} to {urgent}" if urgent else "0"
        yield "priority", f"runs of this type have a priority of {bounds}"
    if max_attempts is not None and max_attempts > most:
        yield "max_attempts", f"runs of this type have at most {most} attempts"
    if timeout is None:
        return
    if handler is None:
        yield "timeout", "how long an attempt of this type takes is not the caller's to say"
    elif handler.timeout is not None and timeout > handler.timeout.total_seconds():
        yield "timeout", f"an attempt of this type takes at most {handler.timeout.total_seconds():g} seconds"
