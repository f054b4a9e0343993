import asyncio

from maniflex import ConstraintViolation, Model, NotFound, Server, field


class Tag(Model):
    name: str = field(unique=True, filterable=True, sortable=True)
    uses: int = field(default=0)


server = Server(database="sqlite:///:memory:")
server.register(Tag)


async def main() -> None:
    async with server.lifespan():
        tags = server.db(Tag)
        python = await tags.create(name="python")
        await tags.increment(python.id, uses=2)
        assert (await tags.read(python.id)).uses == 2
        assert await tags.exists(filters={"name": "python"})

        try:
            await tags.create(name="python")
        except ConstraintViolation as refused:
            print("taken:", refused.table, refused.columns)

        await tags.delete(python.id)
        try:
            await tags.read(python.id)
        except NotFound:
            assert await tags.count() == 0


if __name__ == "__main__":
    asyncio.run(main())
