"""What an application keeps of persons: the map has all of it, and the doctor finds what was forgotten."""

from __future__ import annotations

from datetime import date

from maniflex import Model, Server, field
from maniflex.erasure.inventory import inventory
from maniflex.storage import MemoryStorage
from tests.erasure.world import MODELS, Customer
from tests.kit.doctor import declared, sound_server


class Tenant(Model, subject="id"):
    name: str = field(personal=True, erased="")
    work_email: str | None = None
    email_sent: bool = False
    birth_date: date | None = None
    notes: str = ""


class Key(Model):
    tenant_id: str = field(relation=Tenant)
    homeAddress: str | None = None


class Building(Model):
    title: str = ""


def test_every_model_and_field_is_on_the_map_once() -> None:
    server = Server("sqlite://", storage=MemoryStorage())
    server.register(*MODELS)
    server.seal()
    metas = server.doctor_subject().own_models

    entries = inventory(metas)

    assert [entry.model for entry in entries] == sorted(model.__name__ for model in MODELS)
    for entry, meta in zip(entries, sorted(metas, key=lambda one: one.name), strict=True):
        assert sorted([*entry.personal, *entry.texts, *entry.others]) == sorted(f.name for f in meta.fields)
    [customer] = [entry for entry in entries if entry.model == Customer.__name__]
    assert (customer.subject, customer.treatment) == ("id", "anonymise")
    assert customer.personal == ("email", "name", "about", "passport")
    assert customer.texts == ("plan",)
    [invoice] = [entry for entry in entries if entry.model == "Invoice"]
    assert (invoice.treatment, invoice.reason) == ("keep", "ten years by tax law")


async def test_the_doctor_finds_what_an_erasure_would_leave() -> None:
    found = [
        one for one in await declared(sound_server("sqlite://", Tenant, Key, Building)) if one.code == "T181"
    ]

    assert sorted(one.where.split(" ")[0] for one in found) == [
        "Key",
        "Key.homeAddress",
        "Tenant.birth_date",
        "Tenant.work_email",
    ]


async def test_an_application_that_erases_nobody_is_not_warned() -> None:
    class Contact(Model):
        email: str = ""

    assert [one for one in await declared(sound_server("sqlite://", Contact)) if one.code == "T181"] == []
