"""Values that no page shows until somebody asks for one: read of the API again, and noted in the audit."""

from __future__ import annotations

from maniflex.admin.audit import NothingStored
from maniflex.admin.cells import Cell, as_text
from maniflex.admin.names import title_of
from maniflex.admin.reading import ask_record
from maniflex.admin.records import Fact, show_detail
from maniflex.admin.route import act
from maniflex.admin.visit import Visit
from maniflex.errors import Abort, NotFound
from maniflex.pipeline.response import Response


async def reveal(visit: Visit) -> Response:
    """The page of a record with one value that it hides otherwise."""
    site, record_id, name = visit.site(), visit.params["id"], visit.params["field"]
    field = site.meta.by_api.get(name)
    if field is None or not {field.name, field.api} & set(site.admin.reveal):
        raise NotFound(visit.t("no_such_page"))
    adapter = visit.panel.adapter_of(site.meta)
    async with visit.panel.trail.writing(
        visit, adapter, "reveal", model=site.meta.name, record_id=record_id
    ) as entry:
        entry.fields = [field.api]
        record = (await ask_record(visit, site, record_id)).data
        if field.api not in record:  # by whatever rule, the API does not show it to this person
            raise NothingStored()
    if field.api not in record:
        raise Abort(403, "FORBIDDEN", visit.t("not_revealed"))
    fact = Fact(label=title_of(field.api), cell=Cell(kind="text", text=as_text(record[field.api])))
    return await show_detail(visit, site, record, revealed=fact)


ROUTES = (act("/{model}/{id}/reveal/{field}", reveal),)
