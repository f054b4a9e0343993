"""A mistake in a model is told as such, also beside every kind of durable work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from maniflex import Model, Server, WithDeletedAt, field, scheduled
from maniflex.errors import DeclarationError


class Mistaken(Model):
    d_id: str = field(relation="Nope")


class Draft(Model, WithDeletedAt):
    expires_at: datetime | None = scheduled(default=None, soft_delete=True)


async def nothing(_: Any) -> None:
    """Nothing to do."""


FEATURES: dict[str, Callable[[Server], object]] = {
    "work handler": lambda server: server.work.handler("a.v1")(nothing),
    "outbox handler": lambda server: server.outbox.handler("a.happened")(nothing),
    "schedule": lambda server: server.schedules.add("a", cron="@daily", run="a.v1"),
    "job handler": lambda server: server.jobs.handler("a")(nothing),
    "job status": lambda server: server.jobs.mount_status(),
    "scheduled field": lambda server: server.register(Draft),
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_a_mistake_in_a_model_is_named_beside_every_feature(feature: Callable[[Server], object]) -> None:
    server = Server("sqlite://:memory:")
    server.register(Mistaken)
    feature(server)

    with pytest.raises(DeclarationError, match="Nope"):
        server.seal()
