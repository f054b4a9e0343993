"""For every factory of the catalogue a call that is right, and calls that are not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import maniflex
from maniflex import AuthInfo, LocaleString, Model, Server
from maniflex.audit import TableSink
from maniflex.ext.mail import MemoryMailer
from maniflex.middleware import auth, stores, workflow
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.registration import DESCRIPTION, STEPS
from tests.catalogue.factories import factories, homes_of

NAMES_FIELDS = ("field", "fields", "source", "target", "start", "end", "when_field", "relation", "within")
SECRET = "a secret of at least thirty-two bytes"
KEY = "a key of at least sixteen letters"
SPEC_STEPS = ("openapi.auth", "openapi.generate", "openapi.response")


class Status(StrEnum):
    DRAFT = "draft"
    DONE = "done"


class Section(Model, table="sections"):
    name: str
    tenant_id: str = ""


class Article(Model, table="articles"):
    title: str
    slug: str = ""
    email: str = maniflex.field(unique=True)
    password: str = maniflex.field(writeonly=True)
    amount: Decimal = Decimal(0)
    status: Status = Status.DRAFT
    starts: date | None = None
    ends: date | None = None
    published_at: datetime | None = None
    writer: str = ""
    tenant_id: str = ""
    section_id: str = maniflex.field(relation=Section)
    motto: LocaleString | None = None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call."""

    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


def given(*positional: Any, **named: Any) -> Arguments:
    return Arguments(positional, named)


@dataclass(frozen=True)
class Sample:
    """A right call, wrong ones, and what a registration needs besides."""

    right: Arguments
    wrong: tuple[Arguments, ...] = ()
    register: dict[str, Any] = field(default_factory=dict)
    starts: bool = True  # False: it needs what no model has yet


def sample(right: Arguments, *wrong: Arguments, starts: bool = True, **register: Any) -> Sample:
    return Sample(right, wrong, register, starts)


def anything(*_: Any) -> Any: ...


class Numbers:
    """Takes the numbers of requests."""

    def count(self, name: str, labels: dict[str, str]) -> None: ...

    def observe(self, name: str, value: float, labels: dict[str, str]) -> None: ...


def pair(username: str, password: str) -> AuthInfo | None: ...


NOBODY = AuthInfo()
NO_POLICY: Any = None
ADA = AuthInfo(user_id="ada")
AWAY = stores.RedisStore("nowhere")
SIGN_UP: dict[str, Any] = {"models": [Article], "operations": "create"}

SAMPLES: dict[str, Sample] = {
    "auth.allow_anonymous": sample(given()),
    "auth.allow_public_read": sample(given()),
    "auth.allow_public_write": sample(given(), **SIGN_UP),
    "auth.api_keys": sample(
        given(keys={KEY: ADA}),
        *(
            given(),
            given("a b", {KEY: ADA}),
            given(keys={}),
            given(keys={"": ADA}),
            given(keys={KEY: NOBODY}),
        ),
    ),
    "auth.basic": sample(given(pair), given(None), given(pair, realm='"'), given(lambda: None)),
    "auth.block_operation": sample(given("delete"), given(), given("delte")),
    "auth.csrf": sample(
        given(),
        *(given("single"), given("signed"), given(secret=""), given(origins=["https://*"]), given(header="")),
        *(given(same_site="maybe"), given(token_bytes=1), given(cookie="a b")),
    ),
    "auth.jwks": sample(
        given("https://example.com/keys", issuer="us"),
        *(given(""), given("http://example.com/keys"), given("https://example.com", timeout=0)),
        *(given("https://example.com", algorithms=["HS256"]), given("https://example.com", audience="")),
    ),
    "auth.jwt": sample(
        given(SECRET),
        *(given(), given(""), given(SECRET, public_key="x"), given(public_key="x"), given(object())),
        *(given(SECRET, algorithms=["none"]), given(SECRET, issuer=""), given(SECRET, leeway=-1)),
        *(given(SECRET, header=""), given(SECRET, cookie=""), given(SECRET, verify=pair)),
        given(SECRET, revoker=object()),
    ),
    "auth.require_auth": sample(given()),
    "auth.require_role": sample(given("admin"), given(""), given(None)),
    "auth.verify": sample(given(anything), given(lambda ctx: None), given("x"), starts=False),
    "auth.require_scope": sample(given("read"), given(), given(""), given("a b"), given(None)),
    "auth.require_owner": sample(given("writer"), given(""), given("writer", admin_roles=[""])),
    "auth.enforce": sample(
        given(anything),
        *(given(None), given(anything, where=1), given(auth.all_of()), given(auth.not_(NO_POLICY))),
    ),
    "body.coerce_types": sample(given()),
    "body.max_body_size": sample(given("10KB"), given(0), given(-1), given("much"), given("2GB")),
    "body.reject_unknown_fields": sample(given()),
    "body.strip_unknown_fields": sample(given()),
    "db.audit_action": sample(given(), given(sink=object()), given(include_body=[""]), given(include_body=1)),
    "db.audit_log": sample(
        given(),
        *(given(sink=object()), given(sink=TableSink), given(sink=TableSink(admin_role=""))),
        *(given(delivery="soon"), given(changes="yes"), given(requests_only=1)),
        *(given(exclude=["titel"]), given(exclude=[""]), given(exclude=1)),
    ),
    "db.audit_reads": sample(
        given(),
        *(given(sink=object()), given(required=1), given(delivery="soon")),
        given(required=True, delivery="background"),
    ),
    "db.cache_query": sample(given(), given(ttl=0), given(store=AWAY), given(key="x"), given(store=object())),
    "db.force_filter": sample(
        given("tenant_id", "acme"), given("tenant_id", "a", "is"), given("tenant_id", "a", "gt_field")
    ),
    "db.force_filter_via": sample(given("section", "tenant_id", "acme"), given("section", "tenant", "acme")),
    "db.invalidate": sample(
        given(stores.MemoryStore(), anything),
        *(given(stores.MemoryStore(), None), given(AWAY, anything), given(object(), anything)),
        at="after",
    ),
    "db.paginate": sample(given(10), given(0), given(-1), given("ten"), given(None)),
    "db.rate_limit": sample(
        given(),
        *(given(0), given(5, 0), given(5, cost=6), given(on_error="pass"), given(backend=object())),
        *(given(key="x"), given("5")),
    ),
    "db.rate_limit_field": sample(given("email", 5, 60), given("email", 0, 60), given("email", 5, -1)),
    "db.tenancy": sample(given(), given("tenant_id", "x"), given(shared=["Sektion"])),
    "idempotency.keys": sample(
        given(),
        *(given(lease=0), given(ttl=5, lease=30), given(on_error="pass"), given(max_answer="much")),
        at="after",
    ),
    "openapi.add_extension": sample(given(anything), given(None), at="after"),
    "openapi.add_security_scheme": sample(
        given("key", {"type": "http"}), given("", {"type": "http"}), given("key", {}), given("key", None)
    ),
    "openapi.add_server": sample(given("https://example.com"), given(""), given(None)),
    "openapi.add_tag": sample(given("Shop"), given(""), given(None)),
    "openapi.inject_request_example": sample(
        given("POST", "/api/articles", {"title": "Tea"}),
        given("", "/api/articles", {}),
        given("POST", "", {}),
    ),
    "openapi.set_description": sample(given("All of it."), given(""), given(None)),
    "openapi.set_title": sample(given("Shop"), given(""), given(None)),
    "openapi.set_version": sample(given("2.0"), given(""), given(None)),
    "response.add_header": sample(
        given("X-Shop", "1"), given("", "1"), given("X-Shop", "a\nb"), given("Content-Length", "1")
    ),
    "response.cache": sample(
        given(60), given(-1), given(60, no_store=True), given(public=True, no_store=True)
    ),
    "response.cors": sample(
        given(["https://example.com"]), given([]), given("*", credentials=True), given(["example"])
    ),
    "response.envelope": sample(given(anything), given(None)),
    "response.logging": sample(given(), given(object())),
    "response.metrics": sample(given(Numbers()), given(None), given(stores.MemoryStore())),
    "response.redact_field": sample(given("title", anything), given("title", None)),
    "response.security_headers": sample(given(), given(hsts=-1), given(frame="a\nb")),
    "response.transform_field": sample(given("title", anything), given("title", None)),
    "service.copy_field": sample(given("title", "slug"), given("title", "title")),
    "service.emit": sample(given(), given(object()), given(source="")),
    "service.hash_field": sample(given("password"), given("password", "md5")),
    "service.owner_scope": sample(given("writer"), given("writer", mismatch="ignore")),
    "service.send_email": sample(
        given(anything, MemoryMailer()), given(None, MemoryMailer()), given(anything, MemoryMailer)
    ),
    "service.set_field": sample(given("writer", "ada")),
    "service.slugify_field": sample(given("title", "slug"), given("title", "slug", max_length=0)),
    "service.strip_field": sample(given("confirmation"), given()),
    "service.timestamp": sample(given("published_at"), given("title")),
    "service.timestamp_when": sample(
        given("published_at", "status", "done"), given("published_at", "status", "dun")
    ),
    "service.webhook": sample(
        given("https://example.com/hooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        given("https://example.com/hooks", ""),
        given("https://10.0.0.1/hooks", None),
        given("https://example.com/hooks", None, format="xml"),
    ),
    "validate.cross_field": sample(given(lambda values: None), given(None)),
    "validate.date_range": sample(given("starts", "ends"), given("title", "ends")),
    "validate.exists": sample(given("section_id", Section), given("section_id", "Sektion")),
    "validate.field_role": sample(given("status", "admin"), given("status", "")),
    "validate.forbidden_values": sample(given("title", "admin"), given("title")),
    "validate.numeric_precision": sample(
        given("amount", 19, 4), given("amount", -1, 0), given("amount", 2, 3), given("starts", 5, 2)
    ),
    "validate.regex_field": sample(
        given("title", "^a"), given("title", "("), given("title", "a", engine="x")
    ),
    "validate.require_at_least_one": sample(given("title", "slug"), given()),
    "validate.require_locale": sample(
        given("motto", "de"), given("motto"), given("motto", ""), given("title", "de")
    ),
    "validate.require_when": sample(
        given("slug", "status:eq:done"),
        given("slug"),
        given("slug", "status:is:x"),
        given("slug", "status:eq:x"),
    ),
    "validate.restrict_field": sample(given("status", anything), given("status", None)),
    "validate.unique_field": sample(given("email"), given("email", within="tenant")),
    "workflow.machine": sample(
        given("status", workflow.allow("draft", "done")),
        *(given("status", workflow.allow("draft", "dun")), given("status", "draft")),
    ),
}


def misspelt(name: str, right: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The call with each of its names of fields misspelt in turn, and that spelling."""
    call = inspect.signature(factories()[name]).bind(*right.positional, **right.named)
    call.apply_defaults()
    for parameter in NAMES_FIELDS:
        value: Any = call.arguments.get(parameter)
        names = [value] if isinstance(value, str) else list(value or ())
        for place, one in enumerate(names):
            wrong = f"{one}x"
            changed = [*names[:place], wrong, *names[place + 1 :]]
            new = wrong if isinstance(value, str) else tuple(changed)
            other = inspect.BoundArguments(call.signature, {**call.arguments, parameter: new})
            yield wrong, Arguments(other.args, other.kwargs)


ODD_VALUES: tuple[Any, ...] = (None, 5, [], {5: 5}, [("a", "eq", "b")])


def odd(name: str) -> Iterator[Arguments]:
    """Calls of the right sample in which one argument is of a type that it may not have."""
    right, parameters = SAMPLES[name].right, inspect.signature(factories()[name]).parameters
    for place, (label, parameter) in enumerate(parameters.items()):
        for value in ODD_VALUES:
            if parameter.kind is parameter.VAR_POSITIONAL:
                yield Arguments((*right.positional[:place], value), right.named)
            elif place < len(right.positional):
                positional = [*right.positional]
                positional[place] = value
                yield Arguments((*positional,), right.named)
            elif parameter.kind is not parameter.VAR_KEYWORD:
                yield Arguments(right.positional, {**right.named, label: value})


def make(name: str, arguments: Arguments) -> Any:
    return factories()[name](*arguments.positional, **arguments.named)


def wrong_steps(name: str, entry: Entry) -> list[str]:
    """The steps that such an entry does nothing on."""
    steps = {*STEPS, *SPEC_STEPS} - set(homes_of(name))
    return sorted(steps - ({"openapi.auth"} if DESCRIPTION in entry.homes else set()))


def register(server: Server, step: str, entry: Any, label: str, options: dict[str, Any]) -> None:
    """Register the entry there, as that name."""
    owner: Any = server.pipeline
    for part in step.split("."):
        owner = getattr(owner, part)
    only = {"at": options["at"]} if "at" in options else {}
    owner.register(entry, name=label, **(only if step in SPEC_STEPS else options))


def new_server() -> Server:
    server = Server("sqlite:///:memory:")
    server.register(Section, Article)
    return server
