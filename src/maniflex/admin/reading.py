"""One record as the API shows it to this person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maniflex.admin.call import ApiAnswer, Refusal
from maniflex.admin.lists import relations_to_include
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.pipeline.steps.browse import PageRequest


async def ask_record(visit: Visit, site: ModelSite, record_id: str) -> ApiAnswer:
    """A record, with those it belongs to as far as these may be seen; 404 outside the scope."""
    names = await relations_to_include(visit, site, site.fields)
    path = visit.api.path(site) if site.is_singleton else visit.api.path(site, record_id)
    answer = await visit.api.ask("GET", path, query={"include": ",".join(names)} if names else "")
    if not answer.ok and names and answer.status in (400, 401, 403):
        answer = await visit.api.ask("GET", path)
    if answer.status == 404:
        raise NotFound(visit.t("no_such_record"))
    if not answer.ok:
        raise Refusal(answer.response)
    if not isinstance(answer.data, Mapping):  # `export` or `history` is no id, but a path of the API
        raise NotFound(visit.t("no_such_record"))
    return answer


async def read_deleted(visit: Visit, site: ModelSite, record_id: str) -> Mapping[str, Any] | None:
    """A record in the trash, for somebody who may list it."""
    if site.meta.soft_delete is None:
        return None
    page = PageRequest(1, deleted=True, filters=(("id", "eq", record_id),))
    answer = await visit.api.page(site, (), page)
    records = answer.data if answer.ok else []
    return records[0] if records else None
