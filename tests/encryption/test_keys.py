"""Providers, envelopes and digests, without a database."""

from __future__ import annotations

import base64
import os

import pytest

from maniflex.encryption import (
    DecryptionError,
    EncryptionNotConfigured,
    EnvKeyProvider,
    KeyProvider,
    Keyring,
    MemoryKeyProvider,
    context_of,
)
from maniflex.encryption.envelope import from_text, head_of, key_id_of, to_text, version_of
from maniflex.encryption.local import generate_key
from maniflex.testing.conformance import KeyProviderConformance

CONTEXT = context_of("patients.ssn", "1")
SECRET = bytes(range(32))


class TestMemoryKeys(KeyProviderConformance):
    @pytest.fixture
    def provider(self) -> KeyProvider:
        return MemoryKeyProvider()


class TestEnvironmentKeys(KeyProviderConformance):
    @pytest.fixture
    def provider(self) -> KeyProvider:
        return EnvKeyProvider(
            environ={"MFX_KEY_DEFAULT": generate_key(), "MFX_KEY_OTHER_KEY": generate_key()}
        )


def test_envelopes_of_versions_1_and_2_still_open() -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    provider, nonce = MemoryKeyProvider({"old": SECRET}), os.urandom(12)
    first = head_of("old", 1) + nonce + AESGCM(SECRET).encrypt(nonce, b"one", None)
    second = head_of("old", 2) + nonce + AESGCM(SECRET).encrypt(nonce, b"two", head_of("old", 2))

    assert (provider.open(first, CONTEXT), provider.open(second, b"")) == (b"one", b"two")
    assert [version_of(one) for one in (first, second)] == [1, 2]
    assert version_of(provider.seal("old", b"three", CONTEXT)) == 3


def test_a_version_3_envelope_does_not_open_as_an_earlier_one() -> None:
    provider = MemoryKeyProvider({"old": SECRET})
    envelope = provider.seal("old", b"value", CONTEXT)

    for version in (1, 2):
        with pytest.raises(DecryptionError):
            provider.open(bytes([version]) + envelope[1:], CONTEXT)


def test_an_envelope_is_a_text_with_a_prefix() -> None:
    envelope = MemoryKeyProvider().seal("pii", b"value", CONTEXT)

    text = to_text(envelope)

    assert text.startswith("enc:")
    assert "\n" not in text
    assert from_text(text) == envelope
    assert key_id_of(envelope) == "pii"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "MFX_KEY_PATIENT_PII is not set, which holds the key 'patient-pii'"),
        (base64.b64encode(SECRET[:31]).decode(), "MFX_KEY_PATIENT_PII holds 31 bytes; a key has 32"),
        ("!!not base64!!", "MFX_KEY_PATIENT_PII is not base64"),
    ],
)
async def test_a_key_that_lacks_or_is_wrong_is_named_and_never_shown(text: str | None, problem: str) -> None:
    provider = EnvKeyProvider(environ={} if text is None else {"MFX_KEY_PATIENT_PII": text})

    assert await provider.check(["patient-pii"]) == [problem]
    with pytest.raises(EncryptionNotConfigured) as caught:
        await provider.encrypt("patient-pii", b"x", context=CONTEXT)
    assert text is None or text not in str(caught.value)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_key_may_be_plain_or_url_safe_base64(encode: object) -> None:
    secret = b"\xfb\xff" * 16
    text = encode(secret).decode()  # type: ignore[operator]  # a function of bytes

    for written in (text, text.rstrip("=")):
        assert EnvKeyProvider(environ={"MFX_KEY_A": written}).secret_of("a") == secret


async def test_current_writes_under_another_key_and_reads_both() -> None:
    keys = {"pii": SECRET, "pii-2027": SECRET[::-1]}
    old = MemoryKeyProvider(keys).seal("pii", b"value", CONTEXT)
    provider = MemoryKeyProvider(keys, current={"pii": "pii-2027"})

    new = await provider.encrypt("pii", b"value", context=CONTEXT)

    assert provider.key_id_of(new) == "pii-2027"
    assert [await provider.decrypt(one, context=CONTEXT) for one in (old, new)] == [b"value"] * 2
    assert await provider.hmac("pii", b"v") == await MemoryKeyProvider(keys).hmac("pii", b"v")


async def test_all_digests_are_made_under_the_index_key() -> None:
    provider = MemoryKeyProvider({"pii": SECRET, "index": SECRET[::-1]}, index_key="index")

    assert await provider.hmac("pii", b"v") == await MemoryKeyProvider({"index": SECRET[::-1]}).hmac(
        "index", b"v"
    )
    assert await MemoryKeyProvider({"pii": SECRET}, index_key="index").check(["pii"]) == [
        "there is no key 'index'"
    ]


def test_no_repr_shows_a_key() -> None:
    text = generate_key()
    environ = {"MFX_KEY_DEFAULT": text}

    for shown in (EnvKeyProvider(environ=environ), MemoryKeyProvider({"default": SECRET}), Keyring()):
        assert text not in repr(shown)
        assert "\\x01" not in repr(shown)


def test_the_secret_itself_neither_encrypts_nor_digests() -> None:
    import hmac

    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    provider = MemoryKeyProvider({"k": SECRET})
    envelope = provider.seal("k", b"value", CONTEXT)
    head = len(head_of("k"))

    with pytest.raises(InvalidTag):
        AESGCM(SECRET).decrypt(envelope[head : head + 12], envelope[head + 12 :], None)
    assert provider.digest("k", b"v") != hmac.digest(SECRET, b"v", "sha256")


async def test_a_provider_that_asks_elsewhere_is_never_used_at_once() -> None:
    class Elsewhere(MemoryKeyProvider):
        async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
            return await super().encrypt(key_id, plain, context=context)

    assert Keyring(Elsewhere()).waits
    assert not Keyring(MemoryKeyProvider()).waits
    assert not Keyring().waits
