"""Callers and what they may see of an event: every event is judged once for all who see it alike.

`FeedJudge` asks `background/feed/audience.py`. What an event itself tells is said at once; where a row has to
be read or a policy asked, the connection waits for it by itself (`PENDING`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from maniflex.background.feed.api import Events
from maniflex.background.feed.audience import Audience, Facts, Seen
from maniflex.background.feed.described import DescribedType
from maniflex.errors import Abort
from maniflex.events.cloudevents import structured_bytes
from maniflex.events.event import Event
from maniflex.events.patterns import covers, matches
from maniflex.pipeline.context import AsgiScope, AuthInfo
from maniflex.realtime.log import FeedEntry


class _Pending:
    def __repr__(self) -> str:
        return "PENDING"


PENDING: Final = _Pending()  # it takes waiting to know whether the event is shown
NOBODY: Final = AuthInfo(identity_type="anonymous")
_MOST_FRAMES = 8  # of one view: subscriptions are called alike on most connections


class SeenEvent:
    """An event as some callers see it, encoded once; `frames` has it as connections write it."""

    __slots__ = ("data", "event", "frames")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.data = structured_bytes(event)
        self.frames: dict[str, bytes] = {}

    def keep(self, key: str, frame: bytes) -> bytes:
        """Remember the bytes that connections write of it, by how they write it."""
        if len(self.frames) >= _MOST_FRAMES:
            self.frames.clear()
        self.frames[key] = frame
        return frame


class Sight:
    """What one caller is left of a model, and who sees its events alike."""

    __slots__ = ("key", "seen", "shape")

    def __init__(self, seen: Seen, viewer: object) -> None:
        self.seen = seen
        key = seen.key
        self.key = (viewer, seen.meta.name) if key is None else key
        self.shape = None if key is None else (seen.meta.name, seen.hidden)


class Viewer:
    """One caller, with all its connections."""

    __slots__ = ("__weakref__", "auth", "checked_at", "connections", "key", "scope", "sights")

    def __init__(self, key: Any, auth: AuthInfo | None, scope: AsgiScope) -> None:
        self.key = key
        self.auth = auth
        self.scope = scope  # of the handshake, as rules are shown it
        self.sights: dict[str, Sight | None] = {}
        self.connections: set[Any] = set()
        self.checked_at = 0.0

    @property
    def who(self) -> AuthInfo:
        """The identity, also of somebody who is unknown."""
        return NOBODY if self.auth is None else self.auth

    @property
    def expires_at(self) -> float | None:
        """When its token expires, as a time stamp."""
        expires = None if self.auth is None else self.auth.claims.get("exp")
        return float(expires) if isinstance(expires, int | float) and expires is not True else None


class EventJudge(Protocol):
    """Who may see which events."""

    def view_now(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | _Pending | None:
        """What the caller is shown of an event: nothing, a view, or it takes waiting."""

    async def view(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | None:
        """The same, with all the waiting it takes."""

    async def grant(self, viewer: Viewer, patterns: Sequence[str]) -> list[str]:
        """The known types that these patterns give the caller; 403 where it may see none of one of them."""

    async def recheck(self, viewer: Viewer) -> None:
        """Ask anew what the caller is left of the models."""


def forbidden(pattern: str) -> Abort:
    """The refusal of a pattern that is not the caller's to have."""
    return Abort(403, "FORBIDDEN_PATTERN", f"{pattern} is not yours to subscribe to")


class FeedJudge:
    """Judges events of the feed by the rules of the models and the audiences of declared types."""

    def __init__(
        self,
        audience: Audience,
        events: Events,
        allow_patterns: Sequence[str],
        make_context: Callable[[Viewer], Any],
    ) -> None:
        self._audience = audience
        self._own_sources = events.own_sources
        self._types = events.described_types()
        self._allowed = tuple(allow_patterns)
        self._make_context = make_context

    def view_now(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | _Pending | None:
        event = entry.event
        if event.model is None or event.source not in self._own_sources:
            return self._view_addressed(viewer, entry)
        if event.model not in viewer.sights:
            return PENDING
        sight = viewer.sights[event.model]
        if sight is None:
            return None
        try:
            view: SeenEvent | None = entry.views[sight.key]
            return view
        except KeyError:
            pass
        verdict = self._audience.tell(sight.seen, entry.one)
        if verdict is False:
            return entry.keep(sight.key, None)
        if verdict is None or sight.shape is None:
            return PENDING
        return self._view_of_shape(entry, sight)

    def _view_of_shape(self, entry: FeedEntry, sight: Sight) -> SeenEvent | None:
        """The view of all who see the same fields of the model."""
        try:
            view: SeenEvent | None = entry.shapes[sight.shape]
        except KeyError:
            event = self._audience.show_at_once(sight.seen, entry.event)
            view = entry.shapes[sight.shape] = None if event is None else SeenEvent(event)
        entry.keep(sight.key, view)
        return view

    def _view_addressed(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | _Pending | None:
        verdict = self._audience.tell_addressed(viewer.who, entry.event)
        if verdict is None:
            return PENDING
        return self._whole(entry) if verdict else None

    def _whole(self, entry: FeedEntry) -> SeenEvent:
        if None not in entry.shapes:
            entry.shapes[None] = SeenEvent(entry.event)
        whole: SeenEvent = entry.shapes[None]
        return whole

    async def view(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | None:
        event = entry.event
        if event.model is None or event.source not in self._own_sources:
            return self._whole(entry) if await self._audience.is_addressed(viewer.who, event) else None
        sight = await self._sight(viewer, event.model)
        if sight is None or not event.record_id:
            return None
        if entry.facts is None:
            entry.facts = Facts()
        if not await self._audience.allows(sight.seen, entry.one, entry.facts):
            return None
        if sight.shape is not None:
            return self._view_of_shape(entry, sight)
        own_event = await self._audience.show(sight.seen, event)
        return None if own_event is None else SeenEvent(own_event)

    async def _sight(self, viewer: Viewer, model: str) -> Sight | None:
        """What the caller is left of a model, whose chain is asked once."""
        if model not in viewer.sights:
            viewer.sights[model] = await self._admit(viewer, model)
        return viewer.sights[model]

    async def _admit(self, viewer: Viewer, model: str) -> Sight | None:
        meta = self._audience.models.get(model)
        if meta is None:
            return None
        caller_view = await self._audience.admit(self._make_context(viewer), meta)
        return None if caller_view is None else Sight(caller_view, viewer)

    async def grant(self, viewer: Viewer, patterns: Sequence[str]) -> list[str]:
        for pattern in patterns:
            if self._allowed and not any(covers(one, pattern) for one in self._allowed):
                raise forbidden(pattern)
        types: set[str] = set()
        for pattern in patterns:
            matching = [one for one in self._types if matches(pattern, one.type)]
            own = {one.type for one in matching if await self._may_hear(viewer, one)}
            if matching and not own:
                raise forbidden(pattern)
            types |= own
        return sorted(types)

    async def _may_hear(self, viewer: Viewer, one: DescribedType) -> bool:
        if one.model is not None:
            return await self._sight(viewer, one.model.name) is not None
        return bool(one.audience != "nobody")

    async def recheck(self, viewer: Viewer) -> None:
        for model in list(viewer.sights):
            viewer.sights[model] = await self._admit(viewer, model)


class OpenJudge:
    """Shows every event of a bus, whose hub has no models: `visibility` says what is withheld."""

    def __init__(self, allow_patterns: Sequence[str]) -> None:
        self._allowed = tuple(allow_patterns)

    def view_now(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | _Pending | None:
        if None not in entry.shapes:
            entry.shapes[None] = SeenEvent(entry.event)
        view: SeenEvent = entry.shapes[None]
        return view

    async def view(self, viewer: Viewer, entry: FeedEntry) -> SeenEvent | None:
        view = self.view_now(viewer, entry)
        return view if isinstance(view, SeenEvent) else None

    async def grant(self, viewer: Viewer, patterns: Sequence[str]) -> list[str]:
        for pattern in patterns:
            if self._allowed and not any(covers(one, pattern) for one in self._allowed):
                raise forbidden(pattern)
        return []

    async def recheck(self, viewer: Viewer) -> None:
        """There is nothing that could have changed."""
