"""A table with as many rows as wanted, among 300 models: for tests of what large tables cost the panel."""

from __future__ import annotations

from typing import Literal

from maniflex import Model, Server, belongs_to, field, has_many


class Depot(Model):
    name: str = field(filterable=True, sortable=True, unique=True)
    parcels: list[Parcel] = has_many()


class Parcel(Model):
    depot_id: str | None = field(default=None, filterable=True, on_delete="cascade", index=True)
    depot: Depot | None = belongs_to()
    label: str = field(filterable=True, sortable=True, index=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)


def extra_models(count: int) -> list[type[Model]]:
    """Models that are only there."""
    return [
        type(f"Extra{n:03}", (Model,), {"__annotations__": {"name": str}, "name": field(filterable=True)})
        for n in range(count)
    ]


async def fill(server: Server, database: str, depot_id: str, count: int) -> None:
    """So many parcels of a depot, by the database itself."""
    columns = "id, created_at, updated_at, depot_id, label, state"
    if database.startswith("sqlite"):
        moment = "(SELECT created_at FROM depots LIMIT 1)"
        numbers = f"WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count})"
        key, label = "printf('%08x-0000-7000-8000-000000000000', n)", "printf('P%07d', n)"
        values = f"{key}, {moment}, {moment}, ?, {label}, 'open'"
        await server.raw_exec(f"{numbers} INSERT INTO parcels ({columns}) SELECT {values} FROM c", depot_id)
    else:
        series = f"generate_series(1, {count}) n"
        label = "'P' || lpad(n::text, 7, '0')"
        key = "lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000'"
        await server.raw_exec(
            f"INSERT INTO parcels ({columns}) SELECT {key}, now(), now(), ?, {label}, 'open' FROM {series}",
            depot_id,
        )
        await server.raw_exec("ANALYZE parcels")
