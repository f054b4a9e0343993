"""`auth.jwt` as a client sees it: C1 to C4, and what else a token can be."""

from __future__ import annotations

import base64
import json
import logging
from datetime import timedelta
from enum import Enum
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from maniflex import AuthInfo, Context, Operation, Server
from maniflex.middleware import auth
from maniflex.middleware.auth.bearer import TokenMemory
from maniflex.middleware.auth.keys import cost_of, key_of
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import (
    EC_KEY,
    ED_KEY,
    HOUR,
    NOW,
    OTHER_SECRET,
    RSA_KEY,
    SECRET,
    Post,
    app,
    bearer,
    later,
    pem,
    serving,
    token,
)
from tests.kit.declarations import refusal_of
from tests.kit.http import data_of, error_of


def signed(header: dict[str, Any] | str, claims: Any, signature: str = "c2ln") -> str:
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims)]
    return ".".join([*(base64.urlsafe_b64encode(p.encode()).rstrip(b"=").decode() for p in parts), signature])


async def test_c1_no_token_or_something_else_is_401(database_url: str) -> None:
    """C1."""
    async with serving(app(auth.jwt(SECRET)), database_url) as http:
        nothing = await http.get("/api/posts")
        values = ["Basic xyz", "Bearer", "Bearer ", "Bearer a.b.c", "Bearer a b", "", "Digest x", "bearer\tx"]
        others = [await http.get("/api/posts", headers={"Authorization": value}) for value in values]

    error_of(nothing, 401, "UNAUTHORIZED")
    assert nothing.headers["www-authenticate"] == "Bearer"
    for answer in others:
        error_of(answer, 401, "INVALID_TOKEN")
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_two_authorization_headers_are_401(database_url: str) -> None:
    good = f"Bearer {token()}"
    async with serving(app(auth.jwt(SECRET)), database_url) as http:
        for pair in ((good, good), (good, "Bearer x"), ("Basic x", good)):
            answer = await http.get("/api/posts", headers=[("Authorization", value) for value in pair])
            error_of(answer, 401, "INVALID_TOKEN")


async def test_c2_each_time_and_each_foreign_token_has_its_code(database_url: str) -> None:
    """C2."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"exp": None}, "TOKEN_MISSING_EXPIRY"),
        ({"exp": later(seconds=0)}, "TOKEN_EXPIRED"),
        ({"exp": -5}, "TOKEN_EXPIRED"),
        ({"nbf": later(hours=1)}, "TOKEN_NOT_YET_VALID"),
        ({"iat": later(hours=1)}, "TOKEN_FUTURE_ISSUED"),
        ({"iss": "other"}, "INVALID_TOKEN"),
        ({"iss": None}, "INVALID_TOKEN"),
        ({"iss": ["us"]}, "INVALID_TOKEN"),
        ({"aud": "other"}, "INVALID_TOKEN"),
        ({"aud": None}, "INVALID_TOKEN"),
        ({"aud": [["app"]]}, "INVALID_TOKEN"),
        ({"aud": {"app": 1}}, "INVALID_TOKEN"),
        ({"org": None}, "INVALID_TOKEN"),
        ({"sub": None}, "INVALID_TOKEN"),
    ]
    entry = auth.jwt(SECRET, issuer="us", audience=["app", "web"], required_claims=["org"])
    good = {"iss": "us", "aud": ["x", "app"], "org": "acme"}
    async with serving(app(entry), database_url) as http:
        data_of(await http.get("/api/posts", headers=bearer(**good)))
        data_of(await http.get("/api/posts", headers=bearer(**{**good, "aud": "web"})))
        for claims, code in cases:
            whole = {"sub": "ada", "exp": later(hours=1), **good, **claims}
            payload = json.dumps({name: value for name, value in whole.items() if value is not None})
            raw = pyjwt.PyJWS().encode(payload.encode(), SECRET, "HS256")
            error_of(await http.get("/api/posts", headers=bearer(raw)), 401, code)


async def test_a_remembered_token_is_asked_for_its_times_again(database_url: str) -> None:
    clock = FakeClock(NOW)
    headers = bearer(nbf=later(minutes=-1))
    async with serving(app(auth.jwt(SECRET, leeway=timedelta(seconds=5))), database_url, clock) as http:
        data_of(await http.get("/api/posts", headers=headers))
        clock.move_to(NOW - timedelta(seconds=70))
        error_of(await http.get("/api/posts", headers=headers), 401, "TOKEN_NOT_YET_VALID")
        clock.move_to(NOW + timedelta(seconds=HOUR + 4))
        data_of(await http.get("/api/posts", headers=headers))
        clock.advance(timedelta(seconds=1))
        error_of(await http.get("/api/posts", headers=headers), 401, "TOKEN_EXPIRED")


async def test_leeway_holds_for_all_three_times(database_url: str) -> None:
    entry = auth.jwt(SECRET, leeway=60)
    async with serving(app(entry), database_url) as http:
        near = {"exp": later(seconds=-59), "nbf": later(seconds=60), "iat": later(seconds=60)}
        data_of(await http.get("/api/posts", headers=bearer(**near)))
        far = bearer(exp=later(seconds=-60))
        error_of(await http.get("/api/posts", headers=far), 401, "TOKEN_EXPIRED")


async def test_a_token_without_expiry_passes_when_that_is_allowed(database_url: str) -> None:
    async with serving(app(auth.jwt(SECRET, allow_no_expiry=True)), database_url) as http:
        data_of(await http.get("/api/posts", headers=bearer(exp=None)))


async def test_c3_algorithms_belong_to_the_kind_of_key(database_url: str) -> None:
    """C3: a token signed with the text of the public key, `none`, and other algorithms."""
    public = pem(RSA_KEY)
    import hashlib
    import hmac

    def hs256(key: bytes) -> str:
        text = signed({"alg": "HS256", "typ": "JWT"}, {"sub": "ada", "exp": later(hours=1)}, "")[:-1]
        mac = hmac.new(key, text.encode(), hashlib.sha256).digest()
        return f"{text}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"

    claims = {"sub": "ada", "exp": later(hours=1)}
    forged = [
        hs256(public.encode()),
        hs256(public.strip().encode()),
        hs256(b""),
        signed({"alg": "none"}, claims, ""),
        signed({"alg": "NONE"}, claims, ""),
        signed({"alg": ["RS256"]}, claims),
        signed({"alg": None}, claims),
        signed({}, claims),
        signed({"alg": "RS256", "jwk": {"kty": "oct", "k": "YQ"}}, claims),
        token(EC_KEY, "ES256"),
        token(rsa.generate_private_key(65537, 2048), "RS256"),
    ]
    async with serving(app(auth.jwt(public_key=public)), database_url) as http:
        for algorithm in ("RS256", "RS512", "PS384"):
            data_of(await http.get("/api/posts", headers=bearer(token(RSA_KEY, algorithm))))
        for text in forged:
            error_of(await http.get("/api/posts", headers=bearer(text)), 401, "INVALID_TOKEN")


async def test_a_listed_algorithm_is_the_only_one(database_url: str) -> None:
    long_secret = SECRET * 2
    async with serving(app(auth.jwt(long_secret, algorithms=["HS512"])), database_url) as http:
        data_of(await http.get("/api/posts", headers=bearer(token(long_secret, "HS512"))))
        error_of(await http.get("/api/posts", headers=bearer(token(long_secret))), 401, "INVALID_TOKEN")


async def test_several_keys_are_tried_one_after_another(database_url: str) -> None:
    p384 = ec.generate_private_key(ec.SECP384R1())
    keys = [pem(EC_KEY), p384.public_key(), ED_KEY.public_key(), pem(RSA_KEY)]
    async with serving(app(auth.jwt(public_key=keys)), database_url) as http:
        for key, algorithm in ((EC_KEY, "ES256"), (p384, "ES384"), (ED_KEY, "EdDSA"), (RSA_KEY, "PS256")):
            data_of(await http.get("/api/posts", headers=bearer(token(key, algorithm))))
    async with serving(app(auth.jwt([OTHER_SECRET, SECRET])), database_url) as http:
        for secret in (SECRET, OTHER_SECRET):
            data_of(await http.get("/api/posts", headers=bearer(token(secret))))


ODD: dict[str, list[Any]] = {"roles": [7, None, {"a": 1}, [1], ["a", None], True, ["a\x00"]]}
ODD |= {"sub": [["a"], 7, "", "a\x00b", {"x": 1}, True], "scope": [7, {}, [{}]], "tenant": [7, ["t"]]}
ODD |= {"jti": [7, []], "exp": ["soon", True, 1e300, 10**40, [1]], "nbf": ["x"], "iat": [{}, False]}


@pytest.mark.parametrize(
    ("claim", "value"), [(name, value) for name, values in ODD.items() for value in values]
)
async def test_c4_a_claim_of_another_type_is_401(claim: str, value: Any, sqlite_url: str) -> None:
    """C4: never an empty list of roles, and never 500."""
    claims = {"sub": "ada", "exp": later(hours=1), claim: value}
    text = pyjwt.PyJWS().encode(json.dumps(claims).encode(), SECRET, "HS256")
    async with serving(app(auth.jwt(SECRET, tenant_claim="tenant")), sqlite_url) as http:
        error_of(await http.get("/api/me", headers=bearer(text)), 401, "INVALID_TOKEN")


@pytest.mark.parametrize(
    "payload",
    [
        '{"sub":"a","exp":NaN}',
        '{"sub":"a","exp":Infinity}',
        '{"sub":"\\ud800","exp":1e10}',
        "[]",
        '"x"',
        "null",
        "[" * 3000,
        '{"sub":"a","exp":1e10,"x":' + "[" * 500 + "]" * 500 + "}",
        "ÿ",
        "{}",
        "",
    ],
)
async def test_odd_payloads_are_401_even_when_signed(payload: str, sqlite_url: str) -> None:
    text = pyjwt.PyJWS().encode(payload.encode("latin-1"), SECRET, "HS256")
    async with serving(app(auth.jwt(SECRET)), sqlite_url) as http:
        error_of(await http.get("/api/me", headers=bearer(text)), 401, "INVALID_TOKEN")


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c",
        "...",
        "..",
        ".",
        "a.b",
        "a.b.c.d",
        "é.b.c",
        "%00",
        "=.=.=",
        "a" * 8192,
        "a" * 8193,
        "x" * 60000,
        signed("[" * 4000, {}),
        signed('{"alg":"HS256","crit":["x"]}', {}),
        signed('{"alg":"HS256","b64":false}', ""),
    ],
)
async def test_texts_that_are_no_tokens_are_401(text: str, sqlite_url: str) -> None:
    async with serving(app(auth.jwt(SECRET)), sqlite_url) as http:
        headers = {b"authorization": b"Bearer " + text.encode()}
        error_of(await http.get("/api/me", headers=headers), 401, "INVALID_TOKEN")


async def test_c4_the_identity_has_what_the_token_says(database_url: str) -> None:
    """C4: roles as a text of words."""
    claims = {"roles": "a b", "scope": ["read", "write"], "org": "acme", "jti": "s1", "x": {"y": [1]}}
    async with serving(app(auth.jwt(SECRET, tenant_claim="org")), database_url) as http:
        for _ in range(2):  # the second time it is remembered
            me = data_of(await http.get("/api/me", headers=bearer(**claims)))
            assert (me["user_id"], me["roles"], me["scopes"]) == ("ada", ["a", "b"], ["read", "write"])
            assert (me["tenant_id"], me["session_id"], me["auth_method"]) == ("acme", "s1", "jwt")
            assert me["claims"]["x"] == {"y": [1]}
            assert me["identity_type"] == "human"


async def test_what_a_request_does_to_its_identity_no_other_sees(database_url: str) -> None:
    server = app(auth.jwt(SECRET))

    async def elevate(ctx: Context, next: Any) -> None:
        assert ctx.auth is not None
        claims: Any = ctx.auth.claims
        claims["x"].append("more")
        claims["roles"] = ["admin"]
        ctx.auth.roles = ["admin"]
        await next()

    server.pipeline.auth.register(elevate, operations=Operation.LIST)
    headers = bearer(x=["one"])
    async with serving(server, database_url) as http:
        data_of(await http.get("/api/posts", headers=headers))
        me = data_of(await http.get("/api/me", headers=headers))

    assert (me["roles"], me["claims"]["x"]) == ([], ["one"])
    assert "roles" not in me["claims"]


async def test_another_header_takes_the_token_with_or_without_the_scheme(database_url: str) -> None:
    async with serving(app(auth.jwt(SECRET, header="X-Token")), database_url) as http:
        for value in (token(), f"Bearer {token()}", f"bEaReR {token()}"):
            data_of(await http.get("/api/posts", headers={"X-Token": value}))
        for value in ("", "Bearer", f"Basic {token()}"):
            error_of(await http.get("/api/posts", headers={"X-Token": value}), 401, "INVALID_TOKEN")
        error_of(await http.get("/api/posts", headers=bearer()), 401, "UNAUTHORIZED")


async def test_verify_has_the_last_word(database_url: str) -> None:
    def verify(ctx: Context, claims: Any, info: AuthInfo) -> None:
        if claims.get("banned"):
            raise ValueError("this account is closed")
        if claims.get("broken"):
            raise KeyError("x")
        info.roles = [*info.roles, "checked"]

    async with serving(app(auth.jwt(SECRET, verify=verify)), database_url) as http:
        for _ in range(2):
            assert data_of(await http.get("/api/me", headers=bearer()))["roles"] == ["checked"]
            refused = await http.get("/api/me", headers=bearer(banned=True))
            assert error_of(refused, 401, "INVALID_TOKEN")["message"] == "this account is closed"
            error_of(await http.get("/api/me", headers=bearer(broken=True)), 500, "INTERNAL")


async def test_async_verify_is_awaited(database_url: str) -> None:
    async def verify(ctx: Context, claims: Any, info: AuthInfo) -> None:
        raise ValueError("no")

    async with serving(app(auth.jwt(SECRET, verify=verify)), database_url) as http:
        error_of(await http.get("/api/me", headers=bearer()), 401, "INVALID_TOKEN")


async def test_a_token_from_a_cookie(database_url: str) -> None:
    server = app(auth.jwt(SECRET, cookie="session", csrf=False))
    good = token()
    async with serving(server, database_url) as http:
        data_of(await http.get("/api/posts", headers={"Cookie": f'a=b; session={good}; session="{good}"'}))
        for value in (
            f"session={good}; session=x",
            "session=",
            "session=x",
            f"session={token(OTHER_SECRET)}",
        ):
            error_of(await http.get("/api/posts", headers={"Cookie": value}), 401, "INVALID_TOKEN")
        error_of(await http.get("/api/posts", headers={"Cookie": "sessions=1"}), 401, "UNAUTHORIZED")


async def test_in_process_calls_bring_their_identity(database_url: str) -> None:
    server = app(auth.jwt(SECRET), auth.require_role("admin"))
    async with serving(server, database_url):
        admin = AuthInfo(user_id="cron", roles=["admin"])
        assert (await server.execute("list", Post, auth=admin)).status == 200
        assert (await server.execute("list", Post)).status == 401
        assert (await server.execute("list", Post, headers=bearer(roles=["admin"]))).status == 200
        assert (await server.execute("list", Post, headers=bearer("x"), auth=admin)).status == 200


class Level(str, Enum):  # noqa: UP042 - as many applications declare theirs
    ADMIN = "admin"


async def test_roles_and_scopes_may_be_members_of_an_enumeration(database_url: str) -> None:
    server = app(auth.jwt(SECRET), auth.require_role(Level.ADMIN), auth.require_scope(Level.ADMIN))
    async with serving(server, database_url) as http:
        good = await http.get("/api/posts", headers=bearer(roles=["admin"], scope="admin"))
        assert good.status_code == 200
        error_of(await http.get("/api/posts", headers=bearer(scope="admin")), 403, "FORBIDDEN")
        error_of(await http.get("/api/posts", headers=bearer(roles=["admin"])), 403, "FORBIDDEN")


async def test_no_header_makes_a_request_count_as_in_process(database_url: str) -> None:
    """P56."""
    async with serving(app(auth.jwt(SECRET)), database_url) as http:
        claims = {"X-Request-Id": "in-process", "X-Maniflex-In-Process": "1", "X-Forwarded-For": "127.0.0.1"}
        error_of(await http.get("/api/posts", headers=claims), 401, "UNAUTHORIZED")


async def test_it_guards_the_description(database_url: str) -> None:
    server = Server()
    server.register(Post)
    server.pipeline.openapi.auth.register(auth.jwt(SECRET))
    server.pipeline.openapi.auth.register(auth.require_role("admin"))
    async with serving(server, database_url) as http:
        for path in ("/api/openapi.json", "/docs"):
            error_of(await http.get(path), 401, "UNAUTHORIZED")
            error_of(await http.get(path, headers=bearer()), 403, "FORBIDDEN")
            assert (await http.get(path, headers=bearer(roles=["admin"]))).status_code == 200


async def test_it_stands_in_an_action(database_url: str) -> None:
    server = Server()
    server.register(Post)

    @server.action("POST", "/pay", middleware=[auth.jwt(SECRET), auth.require_role("payer")])
    async def pay(ctx: Context) -> str:
        return ctx.require_auth().user_id

    async with serving(server, database_url) as http:
        error_of(await http.post("/api/pay"), 401, "UNAUTHORIZED")
        error_of(await http.post("/api/pay", headers=bearer()), 403, "FORBIDDEN")
        assert data_of(await http.post("/api/pay", headers=bearer(roles=["payer"]))) == "ada"
        data_of(await http.get("/api/posts"))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "give either secret or public_key"),
    ({"secret": SECRET, "public_key": "x"}, "give either secret or public_key"),
    ({"secret": ""}, "the secret is empty"),
    ({"secret": "   "}, "the secret is empty"),
    ({"secret": []}, "the list of keys is empty"),
    ({"secret": pem(RSA_KEY)}, "give it as public_key"),
    ({"secret": 7}, "a secret is text or bytes"),
    ({"public_key": "x"}, "no public key in PEM form"),
    ({"public_key": RSA_KEY}, "it is a private key"),
    ({"public_key": rsa.generate_private_key(65537, 1024).public_key()}, "2048 to 16384 bits"),
    ({"public_key": ec.generate_private_key(ec.SECP256K1()).public_key()}, "secp256k1"),
    ({"secret": SECRET, "algorithms": ["RS256"]}, "none of the algorithms RS256 belongs to the key"),
    ({"public_key": pem(EC_KEY), "algorithms": ["ES384"]}, "none of the algorithms ES384"),
    ({"secret": SECRET, "algorithms": ["none"]}, "there is no algorithm 'none'"),
    ({"secret": SECRET, "leeway": -1}, "leeway"),
    ({"secret": SECRET, "header": "X Token"}, "is no name of a header"),
    ({"secret": SECRET, "verify": lambda: None}, "verify is called with"),
    ({"secret": SECRET, "audience": ""}, "issuer and audience"),
]


@pytest.mark.parametrize(("options", "text"), MISTAKES)
def test_a_wrong_argument_stops_the_start(options: dict[str, Any], text: str) -> None:
    assert text in str(refusal_of(app(auth.jwt(**options))))


def test_all_mistakes_are_in_one_message_and_no_secret_is(caplog: pytest.LogCaptureFixture) -> None:
    said = str(refusal_of(app(auth.jwt(SECRET, algorithms=["RS256"]), auth.jwt(""), auth.block_operation())))

    assert said.startswith("3 problems")
    assert SECRET not in said


def test_a_short_secret_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        app(auth.jwt("x" * 31)).seal()

    assert "shorter than 32 bytes" in caplog.text
    assert "x" * 31 not in caplog.text


def test_on_another_step_it_stops_the_start() -> None:
    server = app()
    server.pipeline.db.register(auth.jwt(SECRET))

    assert "register it on pipeline.auth" in str(refusal_of(server))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maniflex.middleware.auth.keys.find_spec", lambda name: None)

    assert 'auth.jwt needs PyJWT: pip install "maniflex[auth]"' in str(refusal_of(app(auth.jwt(SECRET))))


def test_the_memory_of_tokens_is_bounded() -> None:
    memory = TokenMemory(most=3, most_bytes=100)

    class Fake:
        size = 40

    for number in range(10):
        memory.add(b"%d" % number, Fake())  # type: ignore[arg-type]

    assert len(memory) == 2
    assert memory.find(b"9") is not None
    assert memory.find(b"7") is None


def test_checks_that_take_long_are_known_to() -> None:
    def cost(key: Any, letters: int = 300) -> float:
        return cost_of([key_of(key.public_key())], letters)

    assert cost(RSA_KEY) < 500
    assert cost(EC_KEY) < 500
    assert cost(ec.generate_private_key(ec.SECP521R1())) > 500
    assert cost_of([key_of(RSA_KEY.public_key())] * 20, 300) > 500
