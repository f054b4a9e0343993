import asyncio

from pydantic import BaseModel

from maniflex import Context, Model, Server
from maniflex.testing import client


class Parcel(Model):
    city: str


class Shipped(BaseModel):
    city: str


server = Server(background=False)
server.register(Parcel)
server.events.declare("parcel.shipped", Shipped, title="A parcel left the house")


@server.action("POST", "/parcels/{id}/ship", request=None)
async def ship(ctx: Context) -> dict[str, str]:
    async with ctx.transaction():
        parcel = await ctx.db(Parcel).read(ctx.url_param("id"))
        event = await server.events.publish(
            "parcel.shipped", {"city": parcel.city}, subject=f"parcel/{parcel.id}"
        )
    return {"event": event.id}


async def main() -> None:
    async with client(server) as http:
        parcel = (await http.post("/api/parcels", json={"city": "Ulm"})).json()["data"]
        answer = await http.post(f"/api/parcels/{parcel['id']}/ship")
        assert answer.status_code == 200, answer.text

        await server.events.drain()
        [event] = await server.events.read()
        assert (event.id, event.data) == (answer.json()["data"]["event"], {"city": "Ulm"})


if __name__ == "__main__":
    asyncio.run(main())
