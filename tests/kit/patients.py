"""Patients, whose secrets are stored encrypted."""

from __future__ import annotations

from typing import Any

from maniflex import Model, Server, WithDeletedAt, field, has_many
from maniflex.encryption import KeyProvider, MemoryKeyProvider

SSN, NOTE, EMAIL = "900-11-2233", "allergic to penicillin", "Ada@Clinic.example"
KEYS = {"default": bytes(range(32)), "notes": bytes(range(32, 64))}


class Clinic(Model):
    name: str
    patients: list[Patient] = has_many()


class Patient(Model, WithDeletedAt, versioned=True, restore=True, export=True, optimistic_lock=True):
    name: str = field(filterable=True, sortable=True)
    ssn: str | None = field(default=None, encrypted=True, unique=True)
    note: str | None = field(default=None, encrypted="notes")
    email: str | None = field(default=None, encrypted=True, blind_index="casefold")
    clinic_id: str | None = field(default=None, filterable=True)


def keys(**options: Any) -> MemoryKeyProvider:
    """The same keys every time."""
    return MemoryKeyProvider(dict(KEYS), **options)


def a_clinic(*models: Any, provider: KeyProvider | None = None, **settings: Any) -> Server:
    """A server with keys for these models, or for clinics and patients."""
    server = Server(**settings)
    server.set_key_provider(keys() if provider is None else provider)
    server.register(*(models or (Clinic, Patient)))
    return server
