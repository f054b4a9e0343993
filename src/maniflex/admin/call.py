"""Requests of the panel: in this process, through all steps, as the person who is signed in. Nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack
from urllib.parse import quote, urlencode

import msgspec

from maniflex.admin.people import Origin, Person
from maniflex.admin.site import ModelSite
from maniflex.errors import NotFound, RequestError
from maniflex.features.as_of import with_as_of
from maniflex.features.export import private_export_endpoints
from maniflex.features.files.downloads import private_attachment_endpoints
from maniflex.features.history import private_history_endpoints
from maniflex.http.routing import Router
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer import answer
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.in_process import BodyArgument, InProcess, RequestOptions, in_process_context
from maniflex.pipeline.model_routes import browse_endpoints, private_endpoints, upload_endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Encode, Response
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.browse import PAGE, PageRequest
from maniflex.query.operators import Op
from maniflex.query.query import Forced

MOST_COUNTED = 10_000
_KEPT_SECONDS = 60.0
_MOST_KEPT = 20_000
Pairs = Sequence[tuple[str, str]]


class Refusal(RequestError):
    """An answer of the API that is no success: shown with its own status, code and message."""

    def __init__(self, response: Response) -> None:
        error = response.error or {}
        super().__init__(str(error.get("message", "the request was refused")))
        self.status = response.status
        self.code = str(error.get("code", "REFUSED"))
        self.details = error.get("details")
        self.headers = {k: v for k, v in (response.headers or {}).items() if k == "retry-after"} or None


class ApiAnswer:
    """What the API answered, decoded."""

    def __init__(self, response: Response, encode: Encode) -> None:
        self.response = response
        self.status = response.status
        self._body: Any = None
        if response.error is None and response.stream is None:
            # Middleware may have changed the data; what a client would get of it counts.
            content = response.body if response.body is not None else response.encode(encode)
            self._body = msgspec.json.decode(content) if content else None

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def data(self) -> Any:
        """What the envelope carries, or the refusal as an error."""
        if not self.ok:
            raise Refusal(self.response)
        return self._body["data"] if isinstance(self._body, dict) and "data" in self._body else self._body

    @property
    def code(self) -> str:
        return str((self.response.error or {}).get("code", ""))

    @property
    def message(self) -> str:
        return str((self.response.error or {}).get("message", ""))

    @property
    def details(self) -> list[Mapping[str, Any]]:
        details = (self.response.error or {}).get("details")
        return [d for d in details if isinstance(d, Mapping)] if isinstance(details, list) else []

    @property
    def etag(self) -> str:
        return (self.response.headers or {}).get("etag", "")


@dataclass(frozen=True, slots=True)
class Permission:
    """What the auth step said of a person and an operation."""

    may_pass: bool
    stamped: frozenset[str]  # the fields whose values scope rules give to what is written
    until: float


class PrivateRoutes:
    """Endpoints that are on no path, made when they are first asked for."""

    def __init__(self, routes: RouteBuilder, headless: Sequence[ModelSite] = ()) -> None:
        self._routes = routes
        self.runtime: Runtime = routes.runtime
        # The auth step of a request that is about no model.
        self.auth_step = routes.composer.steps(
            ("auth", "passed"), {"passed": _note_passing}, None, Operation.ACTION, item=False
        )
        self._browse: dict[ModelMeta, tuple[Endpoint, Endpoint]] = {}
        # By the path they would begin with: routes of headless models that have pages.
        self.headless_endpoints = {one.api_path: _headless_endpoints(routes, one.meta) for one in headless}
        self._headless = {
            path: _in_process_routes(routes, path, endpoints)
            for path, endpoints in self.headless_endpoints.items()
        }
        self._uploads: dict[tuple[ModelMeta, Operation], Endpoint] = {}
        self._auth: dict[tuple[ModelMeta, Operation, bool], Endpoint] = {}
        self.answers: dict[tuple[Any, ...], Permission] = {}

    def of_headless(self, path: str) -> InProcess | None:
        """What answers a path of a model that has pages and no routes of its own."""
        start = next((one for one in self._headless if path == one or path.startswith(f"{one}/")), None)
        return None if start is None else self._headless[start]

    def browse(self, meta: ModelMeta) -> tuple[Endpoint, Endpoint]:
        """The page and the count of a model."""
        if meta not in self._browse:
            self._browse[meta] = browse_endpoints(self._routes, meta)
        return self._browse[meta]

    def uploading(self, meta: ModelMeta, operation: Operation) -> Endpoint:
        """The first half of a create or update that brings files."""
        key = (meta, operation)
        if key not in self._uploads:
            self._uploads[key] = upload_endpoint(self._routes, meta, operation)
        return self._uploads[key]

    def auth_only(self, meta: ModelMeta, operation: Operation, item: bool) -> Endpoint:
        """The auth step of an operation, alone."""
        key = (meta, operation, item)
        if key not in self._auth:
            self._auth[key] = self._routes.endpoint(
                "GET",
                f"/{meta.table}",
                operation,
                model=meta,
                steps=(*TRIMMED, "passed"),
                defaults={"passed": _note_passing},
                item=item,
            )
        return self._auth[key]


def _headless_endpoints(routes: RouteBuilder, meta: ModelMeta) -> list[Endpoint]:
    """What a model with routes would have of its own: records, their past, their files and exports."""
    return [
        *with_as_of(routes, private_endpoints(routes, meta)),
        *private_history_endpoints(routes, meta),
        *private_export_endpoints(routes, meta),
        *private_attachment_endpoints(routes, meta),
    ]


def _in_process_routes(routes: RouteBuilder, path: str, endpoints: Sequence[Endpoint]) -> InProcess:
    """What answers requests to routes that only this process can ask."""
    router: Router[Endpoint] = Router()
    for endpoint in endpoints:
        router.add(endpoint.method, path.rpartition("/")[0] + endpoint.path, endpoint)
    return InProcess(routes.runtime, endpoints, router.find)


async def _note_passing(ctx: Context) -> None:
    ctx.response = Response(204)


class Api:
    """The API as one person sees it."""

    def __init__(self, in_process: InProcess, private: PrivateRoutes, person: Person, ctx: Origin) -> None:
        self._in_process = in_process
        self._private = private
        self._runtime = private.runtime
        self._person = person
        self._ctx = ctx
        peer = ctx.scope.get("client")
        self._client: tuple[str, int] | None = (ctx.client_ip, peer[1] if peer else 0) if peer else None

    @property
    def _auth(self) -> AuthInfo | None:
        # A copy: middleware may change it, and the next request is to begin with the person as it is.
        person = self._person
        return None if person.auth is None or person.forwarded_headers else replace(person.auth)

    async def request(
        self,
        method: str,
        path: str,
        scope: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """The answer to a request as a client would send it; `scope` says more than a client could."""
        options["headers"] = {**self._person.forwarded_headers, **(options.get("headers") or {})}
        in_process = self._private.of_headless(path) or self._in_process
        return await in_process.call(
            method,
            path,
            auth=self._auth,
            request_id=self._ctx.request_id,
            client=self._client,
            scope=scope,
            **options,
        )

    async def ask(self, method: str, path: str, **options: Unpack[RequestOptions]) -> ApiAnswer:
        """As `request`, with the answer decoded."""
        return ApiAnswer(await self.request(method, path, **options), self._runtime.encode)

    async def answer(
        self,
        endpoint: Endpoint,
        record_id: str = "",
        *,
        query: Pairs = (),
        json: Any = None,
        scope: Mapping[str, Any] | None = None,
    ) -> ApiAnswer:
        """The answer of an endpoint that is on no path."""
        body = b"" if json is None else self._runtime.encode(json)
        path = endpoint.path.replace("{id}", record_id)
        ctx = self._context(endpoint, path, urlencode(query).encode(), body)
        ctx.model, ctx.resource_id = endpoint.model, record_id  # type: ignore[assignment]  # as for any route
        ctx.scope.update(scope or {})
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    async def upload(self, site: ModelSite, record_id: str, body: BodyArgument, boundary: str) -> ApiAnswer:
        """Store the files of a form as a create does, or with an id as an update; no record is written."""
        operation = Operation.UPDATE if record_id or site.is_singleton else Operation.CREATE
        endpoint = self._private.uploading(site.meta, operation)
        kind = f"multipart/form-data; boundary={boundary}"
        ctx = self._context(endpoint, endpoint.path.replace("{id}", record_id), body=body, kind=kind)
        ctx.model, ctx.resource_id = site.meta, record_id
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    def path(self, site: ModelSite, *parts: str) -> str:
        """The address of a record in the API."""
        if any(not part or "/" in part for part in parts):  # no id is so, and it would be another path
            raise NotFound("no such record")
        return "/".join([site.api_path, *(quote(part, safe="") for part in parts)])

    async def page(self, site: ModelSite, query: Pairs, page: PageRequest) -> ApiAnswer:
        """One page of the records of a model."""
        return await self._browse(site, query, page, 0)

    async def count(self, site: ModelSite, query: Pairs, page: PageRequest | None = None) -> int | None:
        """How many records match, at most one more than `MOST_COUNTED`; None when that cannot be told."""
        if not self._counts(site.meta):
            return None
        request = replace(page) if page is not None else PageRequest(MOST_COUNTED)
        request.limit = min(request.limit, MOST_COUNTED) if page is None else MOST_COUNTED
        answer_ = await self._browse(site, query, request, 1)
        return int(answer_.data) if answer_.ok else None

    async def count_some(
        self, site: ModelSite, filters: Sequence[tuple[str, str, Any]], most: int
    ) -> int | None:
        """How many records match filters of the panel's own, at most one more than `most`."""
        if not self._counts(site.meta):
            return None
        answer_ = await self._browse(site, (), PageRequest(most, filters=tuple(filters)), 1)
        return int(answer_.data) if answer_.ok else None

    def _counts(self, meta: ModelMeta) -> bool:
        """Whether records are counted: not where a policy hides some, nor by a backend that counts none."""
        return not self._runtime.rules[meta.cls].hides_rows and self._runtime.stores[meta.cls].counts

    async def _browse(self, site: ModelSite, query: Pairs, page: PageRequest, which: int) -> ApiAnswer:
        endpoint = self._private.browse(site.meta)[which]
        ctx = self._context(endpoint, f"/{site.table}", urlencode(query).encode())
        ctx.model = site.meta
        ctx.scope[PAGE] = page
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    def _context(
        self,
        endpoint: Endpoint,
        path: str,
        query: bytes = b"",
        body: BodyArgument = b"",
        kind: str = "application/json",
    ) -> Context:
        return in_process_context(
            Context,
            self._runtime,
            endpoint.operation,
            method=endpoint.method,
            path=path,
            query=query,
            headers=[
                *(
                    (k.encode("latin-1"), v.encode("latin-1"))
                    for k, v in self._person.forwarded_headers.items()
                ),
                *([(b"content-type", kind.encode("latin-1"))] if body else []),
            ],
            body=body,
            request_id=self._ctx.request_id,
            client=self._client,
        )

    async def may(self, site: ModelSite, operation: Operation, *, item: bool | None = None) -> bool:
        """Whether the auth step lets this person do it; what comes later may still refuse."""
        return (await self._permission(site, operation, item)).may_pass

    async def stamped_fields(
        self, site: ModelSite, operation: Operation = Operation.CREATE
    ) -> frozenset[str]:
        """The fields that scope rules give to each record that this person writes, whatever a form says."""
        return (await self._permission(site, operation, None)).stamped

    async def _permission(self, site: ModelSite, operation: Operation, item: bool | None) -> Permission:
        on_one = (
            operation not in (Operation.LIST, Operation.CREATE, Operation.EXPORT) if item is None else item
        )
        key = (self._person.key, site.meta.name, operation, on_one)
        now, answers = time.monotonic(), self._private.answers
        answer_before = answers.get(key)
        if answer_before is not None and answer_before.until > now and not self._person.forwarded_headers:
            return answer_before
        endpoint = self._private.auth_only(site.meta, operation, on_one)
        ctx = self._context(endpoint, f"/{site.table}")
        ctx.model = site.meta
        ctx.scope[IN_PROCESS] = True
        ctx.auth = self._auth
        ctx.authenticated, ctx.csrf_exempt = ctx.auth is not None, True
        response = await answer(endpoint, ctx, self._runtime.watch)
        conditions = () if ctx._query is None else ctx._query.forced
        values = [one for one in conditions if isinstance(one, Forced) and one.op is Op.EQ]
        names = frozenset(one.name for one in values if one.on(site.meta) is not None)
        permission = Permission(response.status == 204, names, now + _KEPT_SECONDS)
        if len(answers) >= _MOST_KEPT:
            answers.clear()
        answers[key] = permission
        return permission
