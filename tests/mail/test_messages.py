"""What a mail may say, and how it goes over the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from email import message_from_bytes, policy
from typing import Any

import pytest

from maniflex.errors import ValidationFailed
from maniflex.ext.mail import EmailMessage

ADA = "ada@example.com"


def fields_of(error: ValidationFailed) -> list[str]:
    details: Any = error.details
    return [detail["field"] for detail in details]


@pytest.mark.parametrize("place", ["to", "cc", "bcc", "sender", "reply_to", "subject", "headers", "name"])
@pytest.mark.parametrize(
    "text", ["a\r\nBcc: eve@example.com", "a\nX: 1", "a\rb", "a\x00b", "a\u2028b", "ada@example.com\n"]
)
def test_line_breaks_and_control_characters_are_refused_everywhere(place: str, text: str) -> None:
    values: dict[str, Any] = {"to": ADA, "subject": "Hello"}
    if place == "headers":
        values["headers"] = {"X-Shop": text}
    elif place == "name":
        values["attachments"] = [(text, b"", "text/plain")]
    else:
        values[place] = text

    with pytest.raises(ValidationFailed) as refused:
        EmailMessage(**values)

    [name] = fields_of(refused.value)
    assert name.startswith("attachments" if place == "name" else place)


@pytest.mark.parametrize(
    "address",
    [
        "",
        " ",
        "ada",
        "@example.com",
        "ada@",
        "ada@@example.com",
        "ada@exa mple.com",
        "ada@example..com",
        "ada@-example.com",
        "a@b.c, d@e.f",
        "Ada <ada@example.com>, Eve <eve@example.com>",
        "<ada@example.com",
        "Ada <ada@example.com> x",
        "a" * 65 + "@" + "b" * 250 + ".com",
        "ada@exämple..com",
        None,
        7,
    ],
)
def test_what_is_no_address_is_refused(address: Any) -> None:
    for values in ({"to": address}, {"to": ADA, "cc": [address]}, {"to": ADA, "bcc": (ADA, address)}):
        with pytest.raises(ValidationFailed):
            EmailMessage(subject="Hello", **values)


def test_a_mail_goes_to_somebody() -> None:
    with pytest.raises(ValidationFailed, match="recipients"):
        EmailMessage([], "Hello")
    with pytest.raises(ValidationFailed, match="recipients"):
        EmailMessage([f"a{n}@example.com" for n in range(1001)], "Hello")
    assert EmailMessage([], "Hello", bcc=ADA).recipients == (ADA,)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ValidationFailed) as refused:
        EmailMessage(
            "nobody",
            "a\nb",
            sender="x",
            headers={"To": "eve@example.com", "Content-Type": "x", "X Y": "z"},
            attachments=[("a.txt", "text", "text/plain"), ("b", b"", "multipart/mixed")],  # type: ignore[list-item]
        )

    fields = fields_of(refused.value)
    assert fields == ["to.0", "sender", "subject", *["headers"] * 3, "attachments.0", "attachments.1"]


def test_a_mail_is_what_mail_programs_read() -> None:
    message = EmailMessage(
        ["Ada Lovelace <ada@example.com>", "bob@bücher.example"],
        "Grüße & Küsse",
        "Hallo Ada",
        "<p>Hallo</p>",
        sender='"Shop, the" <shop@example.com>',
        cc=ADA.upper(),
        bcc="eve@example.com",
        reply_to="help@example.com",
        headers={"X-Order": "7"},
        attachments=[("Rechnung ä.pdf", b"%PDF", "application/pdf")],
        id="01-2",
        date=datetime(2026, 1, 1, tzinfo=UTC),
    )
    content = message.mime("other@example.com").as_bytes()
    mail: Any = message_from_bytes(content, policy=policy.default)

    assert b"eve@" not in content
    assert mail["Subject"] == "Grüße & Küsse"
    assert mail["From"].addresses[0].addr_spec == "shop@example.com"
    assert [one.addr_spec for one in mail["To"].addresses] == [ADA, "bob@xn--bcher-kva.example"]
    assert mail["To"].addresses[0].display_name == "Ada Lovelace"
    assert mail["Message-ID"] == "<01-2@example.com>"
    assert mail["X-Order"] == "7"
    assert mail["Date"].datetime == datetime(2026, 1, 1, tzinfo=UTC)
    assert mail.get_body(("plain",)).get_content().strip() == "Hallo Ada"
    assert mail.get_body(("html",)).get_content().strip() == "<p>Hallo</p>"
    [attachment] = list(mail.iter_attachments())
    assert (attachment.get_filename(), attachment.get_content()) == ("Rechnung ä.pdf", b"%PDF")
    assert message.recipients == (ADA, "bob@xn--bcher-kva.example", ADA.upper(), "eve@example.com")


def test_body_is_another_word_for_text_and_nothing_is_shown_of_a_mail() -> None:
    message = EmailMessage(to=ADA, subject="secret subject", body="secret text")

    assert message.text == "secret text"
    assert "secret" not in repr(message)
    assert ADA not in repr(message)
