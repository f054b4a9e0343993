"""Who may do what with runs over REST."""

from __future__ import annotations

from dataclasses import dataclass

from maniflex.background.runs.handlers import Handlers


@dataclass(frozen=True, slots=True)
class Access:
    """What an application says about its runs; the routes themselves are in `maniflex.control.runs`."""

    admin_role: str = "admin"
    routes: bool = True
    submit: bool | tuple[str, ...] = True  # types, and prefixes that end with a dot

    def submits(self, type: str, handlers: Handlers) -> bool:
        """Whether a client may submit runs of this type."""
        handler = handlers.get(type)
        if handler is not None and handler.internal:
            return False
        if isinstance(self.submit, bool):
            return self.submit and handler is not None
        return any(type == one or (one.endswith(".") and type.startswith(one)) for one in self.submit)
