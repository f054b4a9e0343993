"""`POST /{table}/{field}/upload-url`: a URL that a client uploads one file of a field to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, Field

from maniflex.features.files.docs import mint_docs
from maniflex.files.desk import FileDesk
from maniflex.files.mounted import below_root
from maniflex.files.owner import owner_of
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import TRIMMED, RouteBuilder

_MOST_BYTES = 2**53


class UploadWish(BaseModel):
    """The file that a client wants to upload."""

    filename: Annotated[str, Field(min_length=1, max_length=255)]
    content_type: Annotated[str, Field(pattern=r"^[\w.+-]{1,100}/[\w.+-]{1,100}$")]
    size: Annotated[int, Field(ge=0, le=_MOST_BYTES)] | None = None


def mint_endpoints(routes: RouteBuilder, model: ModelMeta, desk: FileDesk) -> Iterator[Endpoint]:
    """The routes of a model's fields with `upload="presigned"`."""
    if model.options.headless:
        return
    for field, rules in file_fields(model):
        if rules.upload == "presigned" and not (field.hidden or field.readonly):
            yield from routes.with_options([_endpoint(routes, model, desk, field, rules)])


def _endpoint(
    routes: RouteBuilder, model: ModelMeta, desk: FileDesk, field: FieldMeta, rules: FileRules
) -> Endpoint:
    async def mint(ctx: Context) -> None:
        wish: UploadWish = await ctx.bind_json(UploadWish)
        owner = await owner_of(ctx, desk.config.file_scope)
        minted = await desk.mint(
            filename=wish.filename, content_type=wish.content_type, size=wish.size, owner=owner, rules=rules
        )
        upload = minted.upload
        ctx.result = {
            "url": below_root(ctx, upload.url),
            "method": upload.method,
            "fields": dict(upload.fields),
            "headers": dict(upload.headers),
            "key": minted.key,
            "max_size": minted.max_size,
            "expires_at": upload.expires_at,
        }

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(200, ctx.result)

    return routes.endpoint(
        "POST",
        f"/{model.table}/{field.api}/upload-url",
        Operation.PRESIGN_UPLOAD,
        model=model,
        steps=(*TRIMMED, "mint"),
        defaults={"mint": mint},
        respond=respond,
        item=False,
        about=mint_docs(model, field, UploadWish),
    )
