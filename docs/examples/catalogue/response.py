import asyncio

from maniflex import Model, Server, field
from maniflex.middleware import response
from maniflex.testing import client

APP = "https://app.example.com"


class Contact(Model, optimistic_lock=True):
    name: str = field(sortable=True)
    phone: str


def last_digits(phone: str) -> str:
    return f"…{phone[-2:]}"


server = Server()
server.register(Contact)
server.use(response.cors([APP, "https://*.preview.example.com"]))
server.use(response.security_headers(hsts=31_536_000))
step = server.pipeline.response
step.register(response.transform_field("phone", last_digits), models=[Contact])
step.register(response.cache(60), models=[Contact])
step.register(response.add_header("X-Data-Class", "personal"), models=[Contact])


async def main() -> None:
    async with client(server, headers={"Origin": APP}) as http:
        made = await http.post("/api/contacts", json={"name": "Ada", "phone": "555 12345"})
        assert made.json()["data"]["phone"] == "…45"
        assert made.headers["access-control-allow-origin"] == APP

        path = f"/api/contacts/{made.json()['data']['id']}"
        read = await http.get(path)
        assert read.headers["cache-control"] == "private, max-age=60"
        tag = read.headers["etag"]
        assert (await http.get(path, headers={"If-None-Match": tag})).status_code == 304
        # The same tag guards a write.
        assert (await http.patch(path, json={"name": "Eve"}, headers={"If-Match": tag})).status_code == 200
        assert (await http.patch(path, json={"name": "Bob"}, headers={"If-Match": tag})).status_code == 412


if __name__ == "__main__":
    asyncio.run(main())
