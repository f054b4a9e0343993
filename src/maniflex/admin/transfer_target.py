"""The API as an import sees it: records by a unique field, create, update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex.admin.call import Api, ApiAnswer
from maniflex.admin.site import ModelSite
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.importer import Reply


class ApiTarget:
    """Stores records by requests of one person."""

    def __init__(self, api: Api, site: ModelSite) -> None:
        self._api = api
        self._site = site

    async def find(self, key: FieldMeta, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The records with one of these values that the person may list."""
        page = PageRequest(len(values), filters=((key.name, "in", list(values)),))
        records: Sequence[Mapping[str, Any]] = (await self._api.page(self._site, (), page)).data
        return records

    async def create(self, values: Mapping[str, Any]) -> Reply:
        """Store a new record."""
        return reply_of(await self._api.ask("POST", self._site.api_path, json=dict(values)))

    async def update(self, record_id: str, values: Mapping[str, Any]) -> Reply:
        """Change a record."""
        path = self._api.path(self._site, record_id)
        return reply_of(await self._api.ask("PATCH", path, json=dict(values)))


def reply_of(answer: ApiAnswer) -> Reply:
    """What the API said, with one problem for each detail of a refusal."""
    if answer.ok:
        data = answer.data
        return Reply(status=answer.status, record=data if isinstance(data, Mapping) else {})
    problems = [
        (str(detail.get("field") or ""), str(detail.get("message") or answer.message))
        for detail in answer.details
    ]
    return Reply(status=answer.status, problems=problems or [("", answer.message)])
