"""Random credentials against every authenticator: never a 5xx, never a way in."""

from __future__ import annotations

import random
from typing import Any

from maniflex import AuthInfo
from maniflex.middleware import auth
from tests.catalogue.auth.kit import RSA_KEY, SECRET, app, later, pem, serving, token

SEED = 20261117
OTHER = "another secret of at least 32 bytes"
KEY = b"a-key-of-sixteen-letters-or-more"
LETTERS = [bytes([code]) for code in range(256) if code not in (0, 10, 13)]


def mutations(chance: random.Random, text: bytes) -> bytes:
    """A text with some of its bytes changed, taken out or doubled."""
    letters = bytearray(text)
    for _ in range(chance.randrange(1, 4)):
        if not letters:
            break
        place = chance.randrange(len(letters))
        match chance.randrange(4):
            case 0:
                letters[place : place + 1] = chance.choice(LETTERS)
            case 1:
                del letters[place : place + chance.randrange(1, 9)]
            case 2:
                letters[place:place] = letters[place : place + 8]
            case _:
                letters = letters[:place] + letters[place:].replace(b".", b"", 1)
    return bytes(letters)


async def test_no_mutation_of_a_credential_passes_or_fails_the_server(
    sqlite_url: str, fuzz_cases: int
) -> None:
    chance = random.Random(SEED)
    good = token(roles=["admin"], jti="x").encode()
    claims: dict[str, Any] = {"roles": ["admin"], "exp": later(hours=1)}
    signed = [good, token(RSA_KEY, "RS256", **claims).encode(), token(OTHER, **claims).encode()]
    keys = auth.api_keys(keys={KEY.decode(): AuthInfo(user_id="robot")})
    entries = [
        auth.csrf(origins=["https://example.com"], enforce_bearer=True),
        auth.allow_anonymous(),
        auth.jwt(public_key=pem(RSA_KEY), cookie="session"),
        auth.basic(refuse),
        keys,
        auth.jwt(SECRET, header="X-Token"),
    ]
    usual: list[tuple[bytes, list[bytes]]] = [
        (b"authorization", [b"Bearer " + text for text in signed] + [b"Basic YTpi", b"Digest a=b"]),
        (b"x-api-key", [KEY]),
        (b"x-token", signed),
        (b"cookie", [b"session=" + text + b"; csrf_token=" + KEY for text in signed]),
        (b"x-csrf-token", [KEY]),
        (b"origin", [b"https://example.com", b"https://[::1]:80"]),
    ]
    async with serving(app(*entries), sqlite_url) as http:
        for _ in range(fuzz_cases):
            headers: list[Any] = []
            for name, values in chance.sample(usual, chance.randrange(1, 4)):
                text = mutations(chance, chance.choice(values)).strip()
                headers += [(name, text)] * chance.choice((1, 1, 1, 2))
            method = chance.choice(("GET", "POST"))
            answer = await http.request(method, "/api/notes", headers=headers, json={"text": "x"})
            http.cookies.clear()
            assert answer.status_code < 500, (headers, answer.text)
            me = await http.get("/api/me", headers=headers)
            http.cookies.clear()
            if me.status_code == 200:  # then a good credential came through as it is
                assert any(text in value for _, value in headers for text in (*signed[:2], KEY)), headers
            else:
                assert me.status_code in (204, 401), me.text


async def refuse(username: str, password: str) -> AuthInfo | None:
    return None
