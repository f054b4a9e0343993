"""What the people are called who acted: rows of history and of durable work know them by their ids."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from maniflex.admin.audit import find_events
from maniflex.admin.declare import name_of
from maniflex.admin.search import read_labels

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

_MOST_ASKED = 50


async def account_names(visit: Visit, ids: Collection[str]) -> dict[str, str]:
    """The labels of accounts of the application, by id, as far as this person may list them."""
    accounts = visit.panel.admin.accounts
    site = None if accounts is None else visit.panel.sites.by_name.get(name_of(accounts))
    if site is None or not ids:
        return {}
    labels = await read_labels(visit, {site.meta.name: ids})
    left_ids = {one for one in ids if (site.meta.name, one) not in labels}
    if left_ids and site.meta.soft_delete is not None:  # who has left still did what they did
        labels |= await read_labels(visit, {site.meta.name: left_ids}, deleted=True)
    return {record_id: label for (_, record_id), label in labels.items()}


async def people_names(visit: Visit, ids: Collection[str]) -> dict[str, str]:
    """What these people are called, by id: accounts of the application, and people of the panel."""
    account_ids = {one for one in ids if one}
    names = await account_names(visit, account_ids)
    for one in sorted(account_ids - names.keys())[:_MOST_ASKED]:
        user = await visit.panel.superusers.read(one) if visit.panel.admin.auth == "superuser" else None
        events = [] if user is not None else await find_events(visit, [("actor_id", "eq", one)], 1)
        name = user.email if user is not None else next((event.actor_name for event in events), "")
        names |= {one: name} if name else {}
    return names
