import asyncio

from maniflex import Context, Model, Next, Server, file
from maniflex.testing import client


class Photo(Model):
    title: str
    year: int | None = None
    image: str | None = file(default=None, max_size="2MB", accept=["image/*"], acl="signed")
    film: str | None = file(default=None, max_size="2GB", upload="stream")
    original: str | None = file(default=None, upload="presigned")


server = Server(storage="memory:")
server.register(Photo)


@server.pipeline.validate.middleware(models=[Photo], operations="create")
async def refuse_tiny(ctx: Context, next: Next) -> None:
    image = ctx.files.get("image")
    if image is not None and len(await image.read()) < 50:
        ctx.abort(422, "TOO_SMALL", "the picture is too small")
    await next()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


async def main() -> None:
    async with client(server) as http:
        # A form: files beside the other fields.
        form = {"title": "May", "year": "2026"}
        files = {"image": ("may.png", PNG, "image/png"), "film": ("may.mp4", bytes(500_000), "video/mp4")}
        photo = (await http.post("/api/photos", data=form, files=files)).json()["data"]
        assert photo["year"] == 2026

        # Its file, whole or in part, for everybody who may read the record.
        image = await http.get(f"/api/photos/{photo['id']}/image", headers={"Range": "bytes=1-3"})
        assert (image.status_code, image.content) == (206, b"PNG")

        # `acl="signed"`: the URL in the answer opens the file without any other credential.
        assert (await http.get(photo["image"])).content == PNG

        # Upload first, name the key later.
        uploaded = await http.post("/api/files", files={"file": ("june.png", PNG, "image/png")})
        key = uploaded.json()["data"]["key"]
        await http.patch(f"/api/photos/{photo['id']}", json={"image": key})

        # Past the server: the client sends the file to a signed URL.
        wish = {"filename": "raw.dng", "content_type": "image/x-adobe-dng"}
        target = (await http.post("/api/photos/original/upload-url", json=wish)).json()["data"]
        sent = await http.request(target["method"], target["url"], content=b"raw", headers=target["headers"])
        assert sent.is_success
        await http.patch(f"/api/photos/{photo['id']}", json={"original": target["key"]})


if __name__ == "__main__":
    asyncio.run(main())
