"""The past of a model that was changed since: by the names and types of now, or refused; never wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import new_class
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Next, Server, field
from maniflex.db.port import Adapter
from maniflex.middleware import db, response
from maniflex.schema.apply import Migrator
from maniflex.schema.make import MakeOptions, Maker
from maniflex.sql.statement import Sql
from maniflex.testing import client
from tests.kit.http import data_of
from tests.kit.migrations import on_adapter


def model(class_name: str = "Job", /, table: str = "moved_jobs", **fields: Any) -> type[Model]:
    """A versioned model with these fields: a type, and what `field` takes."""
    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {n: one[0] for n, one in fields.items()},
    }
    body |= {n: one[1] for n, one in fields.items()}
    keywords = {"versioned": True, "history_restore": True, "table": table}
    return new_class(class_name, (Model,), keywords, lambda namespace: namespace.update(body))


def asked(**options: Any) -> Any:
    return field(filterable=True, sortable=True, **options)


@asynccontextmanager
async def served(url: str, *models: Any, entries: Any = ()) -> AsyncIterator[httpx.AsyncClient]:
    async def who(ctx: Context, next: Next) -> None:
        user = ctx.header("x-user")
        if user:
            ctx.auth = AuthInfo(user_id=user, roles=(user,), tenant_id=ctx.header("x-tenant") or "")
        await next()

    server = Server(url, path_prefix="", background=False)
    server.register(*models)
    server.pipeline.auth.register(who)
    for step, entry in entries:
        getattr(server.pipeline, step).register(entry)
    async with client(server, database=None) as http:
        yield http


async def change(url: str, *statements: str) -> None:
    """Change the tables behind the application's back."""

    async def work(adapter: Adapter) -> None:
        for statement in statements:
            await adapter.execute(Sql(statement))

    await on_adapter(url, work)


async def test_a_renamed_field_filters_and_sorts_the_past_under_its_new_name(database_url: str) -> None:
    async with served(database_url, model(title=(str, asked()))) as http:
        for title in ("b", "a", "c"):
            made = data_of(await http.post("/moved_jobs", json={"title": title}), 201)
    then = made["updated_at"]
    async with served(database_url, model(headline=(str, asked(renamed_from="title")))) as http:
        found = await http.get("/moved_jobs", params={"as_of": then, "filter": "headline:eq:a"})
        assert [one["headline"] for one in data_of(found)] == ["a"]
        everything = await http.get("/moved_jobs", params={"as_of": then, "sort": "headline:desc"})
        assert [one["headline"] for one in data_of(everything)] == ["c", "b", "a"]
        assert everything.json()["meta"]["missing"] == []
        one = data_of(await http.get(f"/moved_jobs/{made['id']}", params={"as_of": then}))
        assert one["headline"] == "c"
        await http.patch(f"/moved_jobs/{made['id']}", json={"headline": "z"})
        [update, create] = data_of(await http.get(f"/moved_jobs/{made['id']}/history"))
        assert create["snapshot"]["headline"] == "c"
        assert create["diff"]["headline"]["new"] == "c"
        assert "title" not in create["snapshot"]
        assert update["diff"] == {"headline": {"old": "c", "new": "z"}}
        restored = data_of(await http.post(f"/moved_jobs/{made['id']}/history/1/restore"))
        assert restored["headline"] == "c"


async def test_an_alias_and_an_attribute_change_names_without_a_migration(database_url: str) -> None:
    async with served(database_url, model(title=(str, asked()))) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
    params = {"as_of": made["updated_at"], "filter": "caption:eq:a"}
    async with served(database_url, model(title=(str, asked(alias="caption")))) as http:
        assert [one["caption"] for one in data_of(await http.get("/moved_jobs", params=params))] == ["a"]
    async with served(database_url, model(caption=(str, asked(column="title")))) as http:
        assert [one["caption"] for one in data_of(await http.get("/moved_jobs", params=params))] == ["a"]


async def test_a_new_field_under_an_old_name_has_none_of_its_values(database_url: str) -> None:
    async with served(database_url, model(title=(str, asked()))) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
    both = model(headline=(str, asked(renamed_from="title")), title=(str, asked(default="new")))
    async with served(database_url, both) as http:
        params = {"as_of": made["updated_at"]}
        past = await http.get(f"/moved_jobs/{made['id']}", params=params)
        assert data_of(past)["headline"] == "a"
        assert "title" not in data_of(past)
        assert past.json()["meta"]["missing"] == ["title"]
        refused = await http.get("/moved_jobs", params=params | {"filter": "title:eq:a"})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "HISTORY_CHANGED"
        assert "title was added on" in error["message"]
        assert error["details"][0]["field"] == "title"


async def test_a_field_that_came_with_a_value_has_it_from_then_on(database_url: str) -> None:
    async with served(database_url, model(title=(str, asked()))) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
        other = data_of(await http.post("/moved_jobs", json={"title": "b"}), 201)
    newer = model(title=(str, asked()), stars=(int, asked(default=3)))
    async with served(database_url, newer) as http:
        later = data_of(await http.patch(f"/moved_jobs/{other['id']}", json={"stars": 5}))["updated_at"]
        params = {"as_of": later, "filter": "stars:eq:3"}
        [found] = data_of(await http.get("/moved_jobs", params=params))
        assert (found["id"], found["stars"]) == (made["id"], 3)
        refused = await http.get("/moved_jobs", params=params | {"as_of": other["updated_at"]})
        assert refused.status_code == 400


async def test_a_version_of_an_older_release_does_not_tell_a_field_that_came_meanwhile(
    database_url: str,
) -> None:
    newer_fields = model(title=(str, asked()), stars=(int, asked(default=3)))
    async with served(database_url, model(title=(str, asked()))) as older:
        made = data_of(await older.post("/moved_jobs", json={"title": "a"}), 201)
        async with served(database_url, newer_fields) as newer:
            path = f"/moved_jobs/{made['id']}"
            set_at = data_of(await newer.patch(path, json={"stars": 5}))["updated_at"]
            then = data_of(await older.patch(path, json={"title": "b"}))["updated_at"]

            [found] = data_of(
                await newer.get("/moved_jobs", params={"as_of": set_at, "filter": "stars:eq:5"})
            )
            assert found["stars"] == 5
            past = await newer.get(path, params={"as_of": then})
            assert "stars" not in data_of(past)
            assert past.json()["meta"]["missing"] == ["stars"]
            refused = await newer.get("/moved_jobs", params={"as_of": then, "filter": "stars:eq:3"})
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["code"] == "HISTORY_CHANGED"
            assert "an older release wrote versions after that" in error["message"]

            after = data_of(await newer.patch(path, json={"title": "c"}))["updated_at"]
            params = {"as_of": after, "filter": "stars:eq:5"}
            assert len(data_of(await newer.get("/moved_jobs", params=params))) == 1


async def test_a_renamed_field_is_redacted_under_its_old_name_too(database_url: str) -> None:
    async with served(database_url, model(pay=(str, asked()), name=(str, asked(default="")))) as http:
        made = data_of(await http.post("/moved_jobs", json={"pay": "4711", "name": "n"}), 201)
        await http.patch(f"/moved_jobs/{made['id']}", json={"pay": "4712"})
    renamed = model(salary=(str, asked(renamed_from="pay")), name=(str, asked(default="")))
    rule = ("response", response.redact_field("salary", lambda ctx: not ctx.has_role("boss")))
    async with served(database_url, renamed, entries=[rule]) as http:
        paths = (
            f"/moved_jobs/{made['id']}/history",
            f"/moved_jobs/{made['id']}/history/1",
            "/job_histories",
            f"/moved_jobs/{made['id']}?as_of={made['updated_at']}",
            f"/moved_jobs?as_of={made['updated_at']}",
        )
        for path in paths:
            answer = await http.get(path, headers={"x-user": "clerk"})
            assert answer.status_code == 200, answer.text
            assert "471" not in answer.text, path
            assert "471" in (await http.get(path, headers={"x-user": "boss"})).text, path


async def test_what_no_field_has_any_more_is_kept_apart_and_hidden_while_a_secret_is_not_found(
    database_url: str,
) -> None:
    async with served(database_url, model(token=(str, asked()), name=(str, asked(default="")))) as http:
        made = data_of(await http.post("/moved_jobs", json={"token": "4711"}), 201)
    await change(database_url, "ALTER TABLE moved_jobs RENAME COLUMN token TO code")
    shown = model(code=(str, asked()), name=(str, asked(default="")))
    path = f"/moved_jobs/{made['id']}/history/1"
    async with served(database_url, shown) as http:
        version = data_of(await http.get(path))
        assert "code" not in version["snapshot"]
        assert version["former"]["snapshot"] == {"token": "4711"}
        assert version["former"]["diff"] == {"token": {"old": None, "new": "4711"}}
    hidden = model(code=(str, field(default="", hidden=True)), name=(str, asked(default="")))
    async with served(database_url, hidden) as http:
        assert "4711" not in (await http.get(path)).text


async def test_a_scope_binds_the_past_of_a_renamed_field(database_url: str) -> None:
    old = model(org_id=(str, field(default="", relation=None)), name=(str, asked(default="")))
    async with served(database_url, old) as http:
        red = data_of(await http.post("/moved_jobs", json={"org_id": "red", "name": "r"}), 201)
        blue = data_of(await http.post("/moved_jobs", json={"org_id": "blue", "name": "b"}), 201)
    new = model(
        tenant_id=(str, field(default="", relation=None, renamed_from="org_id")),
        name=(str, asked(default="")),
    )
    async with served(database_url, new, entries=[("auth", db.tenancy())]) as http:
        caller = {"x-user": "u", "x-tenant": "red"}
        params = {"as_of": blue["updated_at"]}
        [found] = data_of(await http.get("/moved_jobs", params=params, headers=caller))
        assert found["id"] == red["id"]
        versions = await http.get(f"/moved_jobs/{red['id']}/history", headers=caller)
        assert [one["version"] for one in data_of(versions)] == [1]
        foreign = await http.get(f"/moved_jobs/{blue['id']}/history", headers=caller)
        assert foreign.status_code == 404


async def test_versions_from_before_layouts_were_kept_are_believed_as_far_as_they_tell(
    database_url: str,
) -> None:
    async with served(
        database_url,
        model(title=(str, asked()), stars=(int, asked(default=0)), size=(str, asked(default=""))),
    ) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a", "stars": 2, "size": "3"}), 201)
    await change(
        database_url,
        "UPDATE job_histories SET schema_version = NULL",
        "DROP TABLE maniflex_history_schema",
        "ALTER TABLE moved_jobs RENAME COLUMN title TO headline",
        "ALTER TABLE moved_jobs DROP COLUMN size",
    )
    newer = model(
        headline=(str, asked()), stars=(int, asked(default=0)), size=(int | None, asked(default=None))
    )
    async with served(database_url, newer) as http:
        params = {"as_of": made["updated_at"]}
        [found] = data_of(await http.get("/moved_jobs", params=params | {"filter": "stars:eq:2"}))
        assert found["stars"] == 2
        assert "headline" not in found
        assert "size" not in found  # it was a text then
        for name in ("headline:eq:a", "size:eq:3", "size:is_null"):
            refused = await http.get("/moved_jobs", params=params | {"filter": name})
            assert refused.json()["error"]["code"] == "HISTORY_CHANGED", refused.text


async def test_a_renamed_class_takes_its_history_along(database_url: str) -> None:
    class Article(Model, versioned=True):
        title: str = asked()

    async with served(database_url, Article) as http:
        made = data_of(await http.post("/articles", json={"title": "a"}), 201)

    class Post(Model, versioned=True, renamed_from="articles"):
        title: str = asked()

    async with served(database_url, Post) as http:
        [past] = data_of(await http.get("/posts", params={"as_of": made["updated_at"]}))
        assert past["title"] == "a"
        assert len(data_of(await http.get(f"/posts/{made['id']}/history"))) == 1


async def test_a_history_that_would_begin_anew_beside_the_old_one_stops_the_start(sqlite_url: str) -> None:
    async with served(sqlite_url, model("Job", title=(str, asked()))) as http:
        await http.post("/moved_jobs", json={"title": "a"})
    with pytest.raises(DeclarationError, match=r"Task: the versions .* history_table='job_histories'"):
        async with served(sqlite_url, model("Task", title=(str, asked()))):
            pass


MIGRATION = """
import sqlalchemy as sa
from maniflex.migrations import op, types
revision, down_revision = "{revision}", {down!r}

def upgrade() -> None:
    {up}

def downgrade() -> None:
    pass
"""


async def migrate(url: str, home: Path, cls: type[Model], up: str = "") -> None:
    """Apply a file with this line, or one that is made of the differences."""
    server = Server(url, path_prefix="", background=False, migrations_dir=str(home))
    server.register(cls)
    async with server.migration_targets("app:server") as [target]:
        if up:
            down = target.files.heads[0]
            revision = f"by_hand_{down[-20:]}"
            text = MIGRATION.format(revision=revision, down=down, up=up)
            (home / "versions" / f"{revision}.py").write_text(text)
            target.files.reload()
        else:
            await Maker(target, MakeOptions(allow_rewrite=True), datetime.now(UTC)).make()
        await Migrator(target).up()


async def test_values_that_a_migration_computed_are_not_compared_with_those_of_then(
    database_url: str, tmp_path: Path
) -> None:
    price = model(price=(int, asked(default=0)))
    await migrate(database_url, tmp_path, price)
    async with served(database_url, price) as http:
        made = data_of(await http.post("/moved_jobs", json={"price": 5}), 201)
    rebuild = (
        'op.rebuild_table("moved_jobs", sa.Column("price", types.FLOAT(), nullable=False,'
        ' server_default="0"), using={"price": "price * 100.0"})'
    )
    cents = model(price=(float, asked(default=0.0)))
    await migrate(database_url, tmp_path, cents, rebuild)
    async with served(database_url, cents) as http:
        assert data_of(await http.get(f"/moved_jobs/{made['id']}"))["price"] == 500
        params = {"as_of": made["updated_at"], "filter": "price:eq:5"}
        refused = await http.get("/moved_jobs", params=params)
        assert "price was changed from int to float" in refused.json()["error"]["message"]
        version = data_of(await http.get(f"/moved_jobs/{made['id']}/history/1"))
        assert "price" not in version["snapshot"]
        assert version["former"]["snapshot"] == {"price": 5}


async def test_a_process_of_the_former_release_reads_what_a_newer_one_has_written(database_url: str) -> None:
    former = model(title=(str, asked()))
    async with served(database_url, former) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
        newer = model(caption=(str, asked(column="title")), stars=(int, asked(default=3)))
        async with served(database_url, newer) as other:
            changed = data_of(await other.patch(f"/moved_jobs/{made['id']}", json={"caption": "b"}))
        params = {"as_of": changed["updated_at"], "filter": "title:eq:b"}
        assert [one["title"] for one in data_of(await http.get("/moved_jobs", params=params))] == ["b"]
        assert data_of(await http.get("/moved_jobs", params=params | {"filter": "title:eq:a"})) == []
        [update, _] = data_of(await http.get(f"/moved_jobs/{made['id']}/history"))
        assert update["diff"] == {"title": {"old": "a", "new": "b"}}
        assert update["former"]["snapshot"] == {"stars": 3}


# A type, its first and its later default, and how answers show the first.
KINDS: list[tuple[type, Any, Any, Any]] = [
    (str, "it's", "z", "it's"),
    (int, 3, 9, 3),
    (float, 1.5, 9.5, 1.5),
    (bool, True, False, True),
    (Decimal, Decimal("1.50"), Decimal("9.5"), "1.50"),
    (date, date(2024, 2, 29), date(2025, 1, 1), "2024-02-29"),
]


@pytest.mark.parametrize(("type_", "default", "later", "shown"), KINDS)
async def test_the_first_value_of_a_field_is_the_default_of_its_migration_and_not_a_later_one(
    database_url: str, tmp_path: Path, type_: type, default: Any, later: Any, shown: Any
) -> None:
    plain = model(title=(str, asked()))
    await migrate(database_url, tmp_path, plain)
    async with served(database_url, plain) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
        other = data_of(await http.post("/moved_jobs", json={"title": "b"}), 201)
    await migrate(database_url, tmp_path, model(title=(str, asked()), grade=(type_, asked(default=default))))
    newer = model(title=(str, asked()), grade=(type_, asked(default=later)))
    await migrate(database_url, tmp_path, newer)
    async with served(database_url, newer) as http:
        then = data_of(await http.patch(f"/moved_jobs/{other['id']}", json={"title": "c"}))["updated_at"]
        assert data_of(await http.get(f"/moved_jobs/{made['id']}"))["grade"] == shown
        past = data_of(await http.get(f"/moved_jobs/{made['id']}", params={"as_of": then}))
        assert past["grade"] == shown
        text = json.dumps(shown) if type_ is bool else str(shown)
        found = await http.get("/moved_jobs", params={"as_of": then, "filter": f"grade:eq:{text}"})
        assert {one["id"] for one in data_of(found)} == {made["id"], other["id"]}


async def test_a_default_that_differs_by_row_tells_no_first_value(database_url: str, tmp_path: Path) -> None:
    plain = model(title=(str, asked()))
    await migrate(database_url, tmp_path, plain)
    async with served(database_url, plain) as http:
        made = data_of(await http.post("/moved_jobs", json={"title": "a"}), 201)
    column = 'sa.Column("note", types.TEXT(), nullable=True)'
    add = f'op.add_column("moved_jobs", {column}); op.execute("UPDATE moved_jobs SET note = title")'
    newer = model(title=(str, asked()), note=(str | None, asked(default=None)))
    await migrate(database_url, tmp_path, newer, add)
    async with served(database_url, newer) as http:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        past = await http.get(f"/moved_jobs/{made['id']}", params={"as_of": now})
        assert past.json()["meta"]["missing"] == ["note"]


async def test_a_table_that_takes_the_name_of_a_dropped_one_keeps_its_own_history_alone(
    database_url: str, tmp_path: Path
) -> None:
    class Old(Model, versioned=True):
        title: str = asked()

    class Gone(Model, versioned=True):
        title: str = asked()
        size: int = asked(default=0)

    await migrate(database_url, tmp_path, Old)
    await migrate(database_url, tmp_path, Gone)
    async with served(database_url, Old, Gone) as http:
        made = data_of(await http.post("/olds", json={"title": "a"}), 201)
        await http.post("/gones", json={"title": "b"})
    up = "; ".join(
        f"op.{line}"
        for line in (
            'drop_table("gone_histories")',
            'drop_table("gones")',
            'rename_table("olds", "gones")',
            'rename_table("old_histories", "gone_histories")',
        )
    )

    class Renamed(Model, versioned=True, table="gones", history_table="gone_histories"):
        title: str = asked()

    await migrate(database_url, tmp_path, Renamed, up)
    async with served(database_url, Renamed) as http:
        params = {"as_of": made["updated_at"], "filter": "title:eq:a"}
        past = await http.get("/gones", params=params)
        assert [one["id"] for one in data_of(past)] == [made["id"]], past.text
        assert past.json()["meta"]["missing"] == []
        [version] = data_of(await http.get(f"/gones/{made['id']}/history"))
        assert version["snapshot"]["title"] == "a"
