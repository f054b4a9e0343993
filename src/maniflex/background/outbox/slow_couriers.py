"""Couriers whose handlers take long: each is put aside with its message, and the other keys go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from maniflex.background.outbox.delivery import Courier
from maniflex.background.outbox.relay_settings import Relay
from maniflex.db.current import detached_context

SHORTEST_LOOK = 0.01


class SlowCouriers:
    """Those that were put aside; `on_return` is told of each whose handler has returned."""

    def __init__(self, relay: Relay, on_return: Callable[[Courier], None]) -> None:
        self._couriers: set[Courier] = set()
        self._on_return = on_return
        self._policy = relay.policy
        self._logger = relay.logger
        self._metrics = relay.metrics
        self._look = min(relay.policy.slow_after, relay.handlers.least_timeout).total_seconds()
        self._watching: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Courier]:
        return iter(self._couriers)

    def __len__(self) -> int:
        return len(self._couriers)

    @property
    def full(self) -> bool:
        """Whether so many are aside that the relay claims nothing more."""
        return len(self._couriers) >= self._policy.most_aside

    def seconds_until_slow(self, couriers: Iterable[Courier]) -> float:
        """When to look at these couriers again."""
        return max(self._look - max(courier.handler_seconds() for courier in couriers), SHORTEST_LOOK)

    def take(self, courier: Courier) -> bool:
        """Put a courier aside whose handler takes long; whether it does."""
        self._check_timeout(courier)
        if courier.handler_seconds() < self._policy.slow_after.total_seconds():
            return False
        courier.put_aside()
        self._couriers.add(courier)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), context=detached_context())
        return True

    def cancel(self) -> None:
        """Tell all their handlers to stop."""
        for courier in self._couriers:
            courier.cancel()

    async def _watch(self) -> None:
        """Watch them until there are none."""
        while self._couriers:
            await wait_for_first(self._couriers, self._look)
            for courier in list(self._couriers):
                if courier.is_done:
                    self._couriers.discard(courier)
                    self._on_return(courier)
                else:
                    self._check_timeout(courier)

    def _check_timeout(self, courier: Courier) -> None:
        message = courier.message
        if message is not None and courier.check_timeout():
            self._metrics.add("outbox_timeouts_total", kind=message.kind)
            self._logger.warning(
                "outbox: the handler of %s %s takes longer than its timeout", message.kind, message.id
            )


async def wait_for_first(couriers: Iterable[Courier], timeout: float | None = None) -> None:
    """Wait until one of the couriers is done, or time is up."""
    tasks = [courier.task for courier in couriers]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
