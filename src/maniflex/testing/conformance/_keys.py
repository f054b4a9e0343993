"""What a `KeyProvider` promises."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex.encryption.envelope import head_of
from maniflex.encryption.port import KeyProvider, context_of
from maniflex.errors import DecryptionError

CONTEXT = context_of("patients.ssn", "1")
VALUES = (b"", b"x", b"\x00\xff" * 500, "Größe 日本".encode(), b"enc:AAAA")


class Sealing:
    """Values come back, and only where and as they were sealed."""

    @pytest.fixture
    def provider(self) -> KeyProvider:
        raise NotImplementedError("give a provider that has the keys `key_id` and `other_key_id`")

    @pytest.fixture
    def key_id(self) -> str:
        return "default"

    @pytest.fixture
    def other_key_id(self) -> str:
        return "other-key"

    @pytest.mark.parametrize("value", VALUES)
    async def test_a_value_comes_back_as_it_was(
        self, provider: KeyProvider, key_id: str, value: bytes
    ) -> None:
        envelope = await provider.encrypt(key_id, value, context=CONTEXT)

        assert len(value) < 4 or value not in envelope
        assert await provider.decrypt(envelope, context=CONTEXT) == value

    async def test_two_envelopes_of_one_value_differ(self, provider: KeyProvider, key_id: str) -> None:
        one = await provider.encrypt(key_id, b"same", context=CONTEXT)

        assert one != await provider.encrypt(key_id, b"same", context=CONTEXT)

    async def test_an_envelope_names_its_key(
        self, provider: KeyProvider, key_id: str, other_key_id: str
    ) -> None:
        for name in (key_id, other_key_id):
            assert provider.key_id_of(await provider.encrypt(name, b"value", context=CONTEXT)) == name

    async def test_an_envelope_begins_with_the_head_of_its_key(
        self, provider: KeyProvider, key_id: str, other_key_id: str
    ) -> None:
        for name in (key_id, other_key_id):
            assert (await provider.encrypt(name, b"value", context=CONTEXT)).startswith(head_of(name))

    @pytest.mark.parametrize(
        "context", [context_of("patients.ssn", "2"), context_of("patients.name", "1"), b""]
    )
    async def test_an_envelope_opens_with_no_other_context(
        self, provider: KeyProvider, key_id: str, context: bytes
    ) -> None:
        envelope = await provider.encrypt(key_id, b"value", context=CONTEXT)

        with pytest.raises(DecryptionError):
            await provider.decrypt(envelope, context=context)

    async def test_no_byte_of_an_envelope_can_be_changed(self, provider: KeyProvider, key_id: str) -> None:
        envelope = await provider.encrypt(key_id, b"value", context=CONTEXT)

        for place in range(len(envelope)):
            changed_envelope = bytearray(envelope)
            changed_envelope[place] ^= 1
            with pytest.raises(Exception) as caught:
                await provider.decrypt(bytes(changed_envelope), context=CONTEXT)
            assert getattr(caught.value, "status", 0) == 500, f"byte {place}: {caught.value!r}"

    @pytest.mark.parametrize("length", [0, 1, 3, 5, 12])
    async def test_an_envelope_that_is_cut_off_does_not_open(
        self, provider: KeyProvider, key_id: str, length: int
    ) -> None:
        envelope = await provider.encrypt(key_id, b"value", context=CONTEXT)

        with pytest.raises(DecryptionError):
            await provider.decrypt(envelope[:length], context=CONTEXT)

    async def test_many_values_come_back_in_their_order(self, provider: Any, key_id: str) -> None:
        if not hasattr(provider, "encrypt_many"):
            pytest.skip("the provider takes one value at a time")
        contexts = [context_of("patients.ssn", str(number)) for number in range(20)]
        envelopes = await provider.encrypt_many(key_id, [(c[-2:], c) for c in contexts])
        pairs = list(zip(envelopes, contexts, strict=True))
        pairs[7] = (pairs[7][0], CONTEXT)

        values = await provider.decrypt_many(pairs)

        assert isinstance(values.pop(7), DecryptionError)
        assert values == [c[-2:] for number, c in enumerate(contexts) if number != 7]


class Digesting:
    """Digests are the same for the same data, and tell nothing else."""

    async def test_a_digest_is_the_same_for_the_same_data_and_key(
        self, provider: KeyProvider, key_id: str
    ) -> None:
        digest = await provider.hmac(key_id, b"value")

        assert len(digest) == 32
        assert digest == await provider.hmac(key_id, b"value")
        assert digest != await provider.hmac(key_id, b"valuf")

    async def test_keys_that_are_there_have_no_problems(
        self, provider: KeyProvider, key_id: str, other_key_id: str
    ) -> None:
        assert await provider.check([key_id, other_key_id]) == []
