"""Signatures of webhooks: what the independent library reads, and what no key has signed."""

from __future__ import annotations

import base64
import os
import random
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from maniflex._webhook_signatures import (
    checking_key,
    hex_digest,
    is_hex_digest,
    is_signed,
    new_key_pair,
    new_secret,
    public_key_of,
    sign,
    signing_key,
)

BODY = b'{"type":"order.created","data":{"name":"Zo\xc3\xab"}}'


def test_the_independent_library_reads_a_thousand_signatures() -> None:
    secret, now = new_secret(), int(datetime.now(UTC).timestamp())
    oracle, keys, chance = Webhook(secret), [signing_key(secret)], random.Random(7)
    for number in range(1000):
        body = b'{"n":%d,"x":"%s"}' % (number, base64.b64encode(os.urandom(chance.randrange(200))))
        header = sign(keys, f"msg_{number}", now, body)
        sent = {
            "webhook-id": f"msg_{number}",
            "webhook-timestamp": str(now),
            "webhook-signature": header,
        }
        assert oracle.verify(body, sent)["n"] == number
        with pytest.raises(WebhookVerificationError):
            oracle.verify(body.replace(b'"n"', b'"m"'), sent)


def test_what_the_independent_library_signs_is_read() -> None:
    secret, moment = new_secret(), datetime(2026, 1, 1, tzinfo=UTC)
    header = Webhook(secret).sign("msg_1", moment, BODY.decode())
    seconds = str(int(moment.timestamp()))

    assert is_signed([checking_key(secret)], "msg_1", seconds, BODY, header)
    assert not is_signed([checking_key(new_secret())], "msg_1", seconds, BODY, header)


@pytest.mark.parametrize("kind", ["secret", "key pair"])
def test_one_changed_byte_is_not_signed(kind: str) -> None:
    secret = new_secret()
    private, public = (secret, secret) if kind == "secret" else new_key_pair()
    header = sign([signing_key(private)], "msg_1", 1700000000, BODY)
    keys = [checking_key(public)]

    assert is_signed(keys, "msg_1", "1700000000", BODY, header)
    assert not is_signed(keys, "msg_2", "1700000000", BODY, header)
    assert not is_signed(keys, "msg_1", "1700000001", BODY, header)
    for place in range(len(BODY)):
        changed = BODY[:place] + bytes([BODY[place] ^ 1]) + BODY[place + 1 :]
        assert not is_signed(keys, "msg_1", "1700000000", changed, header)


@pytest.mark.parametrize(
    "header",
    ["", "v1", "v1,", "v1,!!", "v2,AAAA", "v1a,AAAA", "," * 50, " " * 5000, "v1,é", "v1,AAAA v1,BBBB"],
)
def test_what_is_no_signature_is_refused(header: str) -> None:
    for key in (new_secret(), new_key_pair()[1]):
        assert not is_signed([checking_key(key)], "msg_1", "1700000000", BODY, header)


def test_during_a_rotation_both_keys_sign() -> None:
    old, new = new_secret(), new_secret()
    header = sign([signing_key(new), signing_key(old)], "msg_1", 1700000000, BODY)

    for secret in (old, new):
        assert is_signed([checking_key(secret)], "msg_1", "1700000000", BODY, header)
    both = [checking_key(old), checking_key(new)]
    only_new = sign([signing_key(new)], "msg_1", 1700000000, BODY)
    assert is_signed(both, "msg_1", "1700000000", BODY, only_new)


def test_a_signature_of_one_kind_is_none_of_another() -> None:
    private, public = new_key_pair()
    header = sign([signing_key(private)], "msg_1", 1700000000, BODY)

    assert header.startswith("v1a,")
    assert public_key_of(private) == public
    assert not is_signed([checking_key(public)], "msg_1", "1700000000", BODY, header.replace("v1a,", "v1,"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_!!!",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whpk_" + base64.b64encode(b"x" * 31).decode(),
        "whpk_?",
    ],
)
def test_what_is_no_key_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|bytes"):
        checking_key(text)


def test_keys_do_not_show_what_they_hold() -> None:
    secret, (private, _) = new_secret(), new_key_pair()

    for text in (secret, private):
        assert text.partition("_")[2][:8] not in repr(signing_key(text))
        assert base64.b64decode(text.partition("_")[2]).hex() not in repr(signing_key(text))


def test_hex_digests_are_read_with_and_without_their_algorithm() -> None:
    secrets = [b"old", b"new"]
    for algorithm in ("sha256", "sha512"):
        digits = hex_digest(b"new", BODY, algorithm)
        for text in (digits, digits.upper(), f"{algorithm}={digits}"):
            assert is_hex_digest(secrets, BODY, text, algorithm)
        for text in ("", "é", digits[:-1], f"md5={digits}", f"{algorithm}={algorithm}={digits}"):
            assert not is_hex_digest(secrets, BODY, text, algorithm)
