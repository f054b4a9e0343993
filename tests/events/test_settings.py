"""The settings of events and webhooks: wrong ones are refused together, and a source is a reference."""

from __future__ import annotations

import pytest

from maniflex import ConfigError, DeclarationError, Server


def test_wrong_settings_are_refused_together() -> None:
    with pytest.raises(ConfigError) as refused:
        Server(
            event_source="a source",
            event_max_size=0,
            event_retention=-5,
            event_poll_interval=0,
            webhook_concurrency=0,
            webhook_retention=-3,
        )
    text = str(refused.value)
    assert text.startswith("6 problems:")
    for name in ("source", "max_size", "retention", "poll_interval"):
        assert f"event_{name}: " in text
    for name in ("concurrency", "retention"):
        assert f"webhook_{name}: " in text


@pytest.mark.parametrize("source", ["", "two words", "x" * 1025, "a\tb", 7])
async def test_a_declared_source_that_is_none_stops_the_start(source: str) -> None:
    server = Server()
    server.events.enable(source=source)
    with pytest.raises(DeclarationError, match=r"events\.enable: source"):
        async with server.lifespan():
            pass


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ({}, "/maniflex"),
        ({"service_name": "shop"}, "/shop"),
        ({"service_name": "my shop ü"}, "/my%20shop%20%C3%BC"),
        (
            {"service_name": "shop", "event_source": "https://shop.example.com/a"},
            "https://shop.example.com/a",
        ),
    ],
)
async def test_events_say_where_they_come_from(
    sqlite_url: str, settings: dict[str, str], source: str
) -> None:
    server = Server(sqlite_url, background=False, **settings)  # type: ignore[arg-type]
    server.events.enable()
    async with server.lifespan():
        event = await server.events.publish("mine.told", outside_transaction=True)
    assert event.source == source
