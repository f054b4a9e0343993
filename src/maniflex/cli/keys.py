"""`maniflex keys`: the keys of encrypted fields."""

from __future__ import annotations

import click

from maniflex.encryption.local import EnvKeyProvider, generate_key


@click.group(short_help="Keys of encrypted fields.")
def keys() -> None:
    """Keys of encrypted fields."""


@keys.command(epilog="Example: maniflex keys generate patient-pii >> .env")
@click.argument("key_id", default="default")
def generate(key_id: str) -> None:
    """Print a new key as the line of an environment file, for the key id KEY_ID."""
    click.echo(f"{EnvKeyProvider().variable_of(key_id)}={generate_key()}")
