"""Events as code makes them, and as CloudEvents in all their forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, from_structured_event
from cloudevents.core.formats.json import JSONFormat

from maniflex.errors import ValidationFailed
from maniflex.events import Event, cloudevents

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def a_full_event() -> Event:
    return Event(
        "order.updated",
        {"total": 7, "name": 'größe "%" 😀'},
        subject="order/7 ü",
        time=AT,
        model="Order",
        operation="updated",
        record_id="7",
        actor_id="u1",
        tenant_id="t1",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        schema_version=2,
        changed=("total", "name"),
        headers={"region": "eu"},
        position=12,
    )


def places_of(refusal: ValidationFailed) -> list[str]:
    assert isinstance(refusal.details, list)
    return [detail["field"] for detail in refusal.details]


def test_only_the_type_is_required() -> None:
    event = Event("order.placed")

    assert (event.source, event.data, event.key, event.position) == ("/maniflex", None, None, None)
    assert event.id != Event("order.placed").id
    assert event.time.tzinfo is not None


def test_the_subject_orders_where_no_key_is_said() -> None:
    assert Event("a", subject="order/7").key == "order/7"
    assert Event("a", subject="order/7", key="k").key == "k"


def test_the_trace_is_read_from_its_parent() -> None:
    assert a_full_event().trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert Event("a", traceparent="nonsense").trace_id is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"type": "order placed"}, ["type"]),
        ({"type": "$session.revoked"}, ["type"]),
        ({"type": "a", "time": datetime(2026, 1, 1)}, ["time"]),
        ({"type": "a", "headers": {"Region": "x"}}, ["headers.Region"]),
        ({"type": "a", "headers": {"tenantid": "x"}}, ["headers.tenantid"]),
        ({"type": "a", "headers": {"originalid": "x"}}, ["headers.originalid"]),
        ({"type": "a", "headers": {"region": 7}}, ["headers.region"]),
        ({"type": "a", "operation": "create", "subject": ""}, ["operation", "subject"]),
    ],
)
def test_what_is_no_event_is_refused_with_all_its_mistakes(values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        Event(**values)

    assert places_of(refusal.value) == names


def test_data_that_is_no_json_is_refused_with_its_place() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        cloudevents.structured_bytes(Event("a", {"lines": [{"ok": 1}, {"bad": object()}]}))

    assert places_of(refusal.value) == ["data.lines[1].bad"]


def test_the_structured_form_is_read_by_others() -> None:
    event = a_full_event()
    message = HTTPMessage({"content-type": cloudevents.STRUCTURED}, cloudevents.structured_bytes(event))

    read = from_structured_event(message, JSONFormat())

    assert (read.get_id(), read.get_source(), read.get_type()) == (event.id, "/maniflex", "order.updated")
    assert read.get_time() == AT
    assert read.get_data() == event.data
    assert read.get_extension("partitionkey") == "order/7 ü"
    assert read.get_extension("sequence") == "00000000000000000012"
    assert read.get_extension("changed") == "total,name"


def test_the_binary_form_is_read_by_others() -> None:
    event = a_full_event()
    headers, body = cloudevents.binary(event)

    read = from_binary_event(HTTPMessage(headers, body), JSONFormat())

    assert read.get_subject() == "order/7 ü"
    assert read.get_extension("tenantid") == "t1"
    assert read.get_data() == event.data


@pytest.mark.parametrize("binding", [cloudevents.HTTP, cloudevents.KAFKA, cloudevents.AMQP])
def test_every_form_comes_back_whole(binding: cloudevents.Binding) -> None:
    event = a_full_event()

    assert cloudevents.read(*cloudevents.binary(event, binding), binding) == event
    assert cloudevents.read_structured(cloudevents.structured_bytes(event)) == event


def test_absent_values_are_left_out() -> None:
    assert cloudevents.write_structured(Event("a", id="1", time=AT)) == {
        "specversion": "1.0",
        "id": "1",
        "source": "/maniflex",
        "type": "a",
        "time": "2026-01-02T03:04:05.678000Z",
        "datacontenttype": "application/json",
    }


def test_what_others_send_is_kept() -> None:
    text = json.dumps(
        {
            "specversion": "1.0",
            "id": "x y",
            "source": "https://others.example",
            "type": "com.example.someevent/v2",
            "comexampleextension": 5,
            "data_base64": "eyJhIjogMX0=",
            "datacontenttype": "application/json",
        }
    )

    event = cloudevents.read({"Content-Type": "application/cloudevents+json; charset=utf-8"}, text.encode())

    assert (event.type, event.data) == ("com.example.someevent/v2", {"a": 1})
    assert event.headers == {"comexampleextension": "5"}
    assert cloudevents.write_structured(event)["comexampleextension"] == "5"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"specversion":"0.3","id":"1","source":"/","type":"a"}',
        b'{"specversion":"1.0","id":"1","source":"/","type":"a","time":"yesterday"}',
        b'{"specversion":"1.0","id":"1","source":"/","type":"a","data_base64":"?"}',
        b'{"specversion":"1.0","id":"1","source":"/","type":"a","schemaver":"x"}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_cloudevent_is_told(body: bytes) -> None:
    with pytest.raises(cloudevents.UnreadableEvent):
        cloudevents.read({}, body)


def test_a_dead_letter_tells_of_the_event_it_stands_for() -> None:
    event = a_full_event()

    letter = event.as_dead_letter("billing.dead", "boom")

    assert letter.type == "billing.dead"
    assert letter.id != event.id
    assert (letter.data, letter.key, letter.position) == (event.data, event.key, None)
    assert letter.headers == {
        "region": "eu",
        "originalid": event.id,
        "originaltype": "order.updated",
        "deadletterreason": "boom",
    }
