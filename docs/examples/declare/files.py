import asyncio

from maniflex import Model, Server, file
from maniflex.testing import client


class Album(Model):
    title: str
    cover: str | None = file(default=None, max_size="2MB", accept=["image/*"])
    scans: list[str] = file(default_factory=list, accept=["application/pdf"], max_count=10)


server = Server(storage="memory:")  # or file:uploads, s3://bucket, ...
server.register(Album)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


async def main() -> None:
    async with client(server) as http:
        photo = await server.files.store(PNG, filename="photo.png")
        other = await server.files.store(PNG, filename="other.png")
        album = (await http.post("/api/albums", json={"title": "May", "cover": photo.key})).json()["data"]
        assert album["cover"] == photo.key

        wrong = await http.patch(f"/api/albums/{album['id']}", json={"scans": [other.key]})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, "FILE_TYPE_NOT_ALLOWED")

        await http.patch(f"/api/albums/{album['id']}", json={"cover": other.key})
        await server.files.sweep()  # the server does this by itself
        assert await server.files.find(photo.key) is None

        async with await server.files.open(other.key) as reader:
            assert await reader.read() == PNG


if __name__ == "__main__":
    asyncio.run(main())
