"""Options, entries and features in any combination: the start works or says why not, no request is 5xx."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from maniflex.errors import DeclarationError
from maniflex.testing import client
from tests.kit.random_features import (
    CALLERS,
    HIDDEN,
    WRITEONLY,
    RandomApplication,
    RandomModel,
    make_application,
)

VALUES: dict[str, tuple[Any, ...]] = {
    "title": ("open", "closed", "Ünï"),
    "amount": (1, 5, 2**40),
    "pin": (WRITEONLY,),
    "ssn": (None, "", "900-1"),
    "tax_id": (None, "12", "13"),
    "label": ({"en": "Hi", "de": "Hallo"}, "plain", None, {}),
    "code": (None, "A", "a"),
    "meta": ({"k": [1, {"z": None}]}, {}),
    "due": (None, "2026-01-01T00:00:00Z"),
    "owner": ("ann", "bob"),
    "phone": ("+49 1", None),
}
QUERIES = (
    *("", "?limit=1", "?sort=title", "?filter=title:eq:open", "?q=open", "?filter=amount:gt:1", "?locale=de"),
    *("?page=2&limit=1", "?filter=label.de:eq:Hallo", "?sort=label", "?select=id,title"),
    *("?filter=tax_id:eq:12", "?as_of=2100-01-01T00:00:00Z", "/history", "/export?format=csv"),
    *("/export?format=jsonl", "/aggregate?select=count:*&group_by=title"),
)
FRAMEWORK = (
    "event_log",
    "event_group",
    "audit_log",
    "webhook_endpoints",
    "webhook_deliveries",
    "workflow_run",
)


class Walk:
    """Requests of all callers to all models, and what was wrong with the answers."""

    def __init__(self, application: RandomApplication, http: httpx.AsyncClient, random: Random) -> None:
        self._application = application
        self._http = http
        self._random = random
        self._ids: dict[str, list[str]] = defaultdict(list)
        self.faults: list[str] = []

    async def go(self) -> None:
        for model in self._application.models:
            for caller in CALLERS:
                await self._create(model, caller)
            for caller in CALLERS:
                await self._read(model, caller)
                await self._change(model, caller)
        for caller in CALLERS:
            for table in FRAMEWORK:
                await self._ask("GET", f"/api/{table}", caller)
            if "batch" in self._application.parts:
                await self._ask("POST", "/api/batch", caller, self._operations())
        await self._ask("GET", "/openapi.json", {})

    def _operations(self) -> dict[str, Any]:
        operations: list[dict[str, Any]] = []
        for model in self._application.models:
            path = model.path.removeprefix("/api")
            operations.append({"method": "POST", "path": path, "body": {"title": "b"}, "as": model.name})
            operations.append({"method": "PATCH", "path": f"{path}/{{{model.name}.id}}", "body": {}})
            operations.append({"method": "GET", "path": f"{path}?limit=2"})
        return {"atomic": self._random.random() < 0.5, "operations": operations}

    async def _ask(
        self, method: str, path: str, caller: Mapping[str, str], body: Any = None
    ) -> httpx.Response:
        answer = await self._http.request(method, path, headers=dict(caller), json=body)
        if answer.status_code >= 500 or HIDDEN in answer.text or WRITEONLY in answer.text:
            self.faults.append(f"{method} {path} {body}: {answer.status_code} {answer.text[:200]}")
        return answer

    async def _create(self, model: RandomModel, caller: Mapping[str, str]) -> None:
        body = {n: self._random.choice(values) for n, values in VALUES.items() if n in model.fields}
        for name in model.fields:
            if name.endswith("_id") and (ids := self._ids[name.removesuffix("_id").capitalize()]):
                body[name] = self._random.choice(ids)
        keyed = {"Idempotency-Key": str(self._random.randint(1, 8))} if self._random.random() < 0.5 else {}
        answer = await self._ask("POST", model.path, {**caller, **keyed}, body)
        if answer.status_code == 201:
            self._ids[model.name].append(answer.json()["data"]["id"])

    async def _read(self, model: RandomModel, caller: Mapping[str, str]) -> None:
        relations = ",".join(name.removesuffix("_id") for name in model.fields if name.endswith("_id"))
        for query in (*QUERIES, *([f"?include={relations}"] if relations else [])):
            await self._ask("GET", f"{model.path}{query}", caller)
        await self._ask("OPTIONS", model.path, caller)

    async def _change(self, model: RandomModel, caller: Mapping[str, str]) -> None:
        for id in self._ids[model.name]:
            path = f"{model.path}/{id}"
            answer = await self._ask("GET", path, caller)
            if answer.status_code == 200:
                await self._ask("PATCH", path, caller, answer.json()["data"])
            for body in ({"title": "y"}, {"amount": 7}, {"ssn": "1"}, {"label": {"de": "Neu"}}, {}):
                await self._ask("PATCH", path, caller, body)
            await self._ask("GET", f"{path}/history", caller)
            if self._random.random() < 0.1:
                await self._ask("DELETE", path, caller)
                await self._ask("POST", f"{path}/restore", caller)


async def _try(seed: int, database: str) -> bool:
    """Start the application of this seed and ask it; False where the start refuses it."""
    random = Random(seed)
    try:
        application = make_application(random)
        async with client(application.server, database=database) as http:
            walk = Walk(application, http, random)
            if "webhooks" in application.parts:
                endpoint = {"url": "http://127.0.0.1:9/hooks", "patterns": ["*"], "timeout": 1}
                await http.post("/api/webhook_endpoints", json=endpoint, headers=CALLERS[0])
            await walk.go()
            if application.makes_events:
                await application.server.events.drain()
            if application.has_subject:
                erasure = application.server.erasure
                foreseen = await erasure.erase("ann", dry_run=True)
                report = await erasure.erase("ann", reason="asked for it")
                assert foreseen.counts == report.counts, (seed, application.parts)
    except DeclarationError:
        return False
    assert not walk.faults, (seed, application.parts, walk.faults)
    return True


async def test_any_combination_starts_and_answers_or_says_why_not(tmp_path: Path, long_mode: bool) -> None:
    started = 0
    seeds = range(400) if long_mode else range(8)
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        started += await _try(seed, f"sqlite:///{folder}/app.db")
        shutil.rmtree(folder)
    assert started > len(seeds) // 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_060))
async def test_any_combination_does_so_on_postgres(postgres_url: str, seed: int) -> None:
    await _try(seed, postgres_url)
