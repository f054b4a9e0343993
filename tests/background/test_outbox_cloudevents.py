"""A message in the forms of CloudEvents 1.0."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from maniflex.background.outbox import cloudevents
from maniflex.background.outbox.message import Message

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def a_message(key: str | None = "order 7") -> Message:
    return Message("0192", "order.placed", key, {"n": 1}, 1, AT, '{"n":1}')


def test_the_structured_form_is_one_object() -> None:
    assert a_message().cloudevent(source="/shop") == {
        "specversion": "1.0",
        "id": "0192",
        "source": "/shop",
        "type": "order.placed",
        "time": "2026-01-02T03:04:05.678000Z",
        "subject": "order 7",
        "partitionkey": "order 7",
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }


def test_the_binary_form_is_headers_beside_the_payload() -> None:
    assert cloudevents.headers(a_message('größe "%'), "/shop") == {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "0192",
        "ce-source": "/shop",
        "ce-type": "order.placed",
        "ce-time": "2026-01-02T03:04:05.678000Z",
        "ce-subject": "gr%C3%B6%C3%9Fe%20%22%25",
        "ce-partitionkey": "gr%C3%B6%C3%9Fe%20%22%25",
    }
    assert a_message().raw == b'{"n":1}'


def test_a_message_without_a_key_has_no_subject() -> None:
    assert not {"subject", "partitionkey"} & a_message(None).cloudevent("/shop").keys()


def test_a_source_is_needed() -> None:
    with pytest.raises(ValueError, match="source"):
        a_message().cloudevent("")
