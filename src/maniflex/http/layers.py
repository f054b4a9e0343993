"""Layers around the whole application, which see a request before it is routed and its answer last.

The first that was added is outermost; entries that were registered on a step stand outside of all others,
so that their headers are on every answer. A layer that raises before it answers is a 500 like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

from maniflex._fence import Fence
from maniflex.http.observing import GuardedObserver, Observed, Observer
from maniflex.pipeline.answer import send_answer
from maniflex.pipeline.entry import Entry, LayerEntry, ObserverEntry
from maniflex.pipeline.exchange import OBSERVED, App, AsgiScope, Receive, Send
from maniflex.pipeline.observation import Tracing
from maniflex.pipeline.registration import takes
from maniflex.pipeline.response import panic_response
from maniflex.pipeline.runtime import Runtime

Layer = Callable[[App], App]


class Surroundings:
    """The layers and observers that an application has declared."""

    def __init__(
        self,
        layers: Sequence[Any],
        observers: Sequence[Any],
        entries: Iterable[Entry],
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        of_server = [entry for entry in entries if entry.is_lifted]
        self._layers = [*(e for e in of_server if isinstance(e, LayerEntry)), *layers]
        self._observers = [*observers, *(e for e in of_server if isinstance(e, ObserverEntry))]

    def problems(self) -> list[str]:
        """The mistakes in what was given to `server.use` and `server.observe`."""
        problems = [f"server.use: {p}" for layer in self._layers for p in _problems(layer, LayerEntry)]
        problems += [f"server.observe: {p}" for fn in self._observers for p in _problems(fn, ObserverEntry)]
        return list(dict.fromkeys(problems))

    def around(self, app: App, runtime: Runtime) -> App:
        """The application with its layers, and its observers outside of them."""
        for layer in reversed(self._layers):
            if isinstance(layer, LayerEntry):
                app = layer.layer(app, runtime)
            else:
                app = GuardedLayer(layer(app), runtime)
        if self._tracing is not None:
            app = self._tracing.layer(app)
        if self._layers:
            app = _NoteTrust(app, runtime)
        observers, numbers = [_observer(fn, runtime) for fn in self._observers], runtime.request_numbers
        if observers or numbers is not None or self._tracing is not None:  # spans need to know the route
            return Observed(app, observers, runtime.proxies, numbers, service=runtime.config.service_name)
        return app


def _observer(fn: Any, runtime: Runtime) -> Observer:
    return GuardedObserver(fn.observe if isinstance(fn, ObserverEntry) else fn, runtime)


def _problems(value: Any, kind: type[Entry]) -> list[str]:
    if isinstance(value, LayerEntry | ObserverEntry) and isinstance(value, kind):
        return [f"{value.name}: {mistake}" for mistake in (*value.mistakes, *value.server_problems())]
    if isinstance(value, Entry):
        return [f"{value.name}: it belongs on {' or '.join(f'pipeline.{step}' for step in value.homes)}"]
    name = getattr(value, "__qualname__", None) or repr(value)
    argument = "app" if kind is LayerEntry else "observation"
    if not callable(value):
        return [f"{name} is not callable"]
    return [] if takes(value, 1) else [f"{name} is called with ({argument}), which it does not take"]


class _NoteTrust:
    """Tells the access log whose word about addresses is taken, for requests that a layer answers."""

    def __init__(self, app: App, runtime: Runtime) -> None:
        self._app = app
        self._proxies = runtime.proxies

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if OBSERVED in scope:
            scope[OBSERVED].proxies = self._proxies
        await self._app(scope, receive, send)


class GuardedLayer:
    """A layer of the application, whose failure is answered as long as nothing was sent."""

    def __init__(self, app: App, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        fence = Fence()
        try:
            await self._app(scope, receive, note)
        except BaseException as error:
            failed = fence.absorb(error)
            if is_begun:
                raise failed  # noqa: B904 - it is the error, or has it as its cause
            self._runtime.panic_logger.exception("a layer failed")
            await send_answer(panic_response(), scope, send, self._runtime)
