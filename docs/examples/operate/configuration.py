import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from maniflex import Config, Model, Server
from maniflex.errors import ConfigError
from maniflex.testing import client


class Book(Model):
    title: str


def read_settings() -> Config:
    with TemporaryDirectory() as directory:
        file = Path(directory, ".env")
        file.write_text("BOOKSTORE_PORT=9000\nBOOKSTORE_SERVICE_NAME='book store'\n")
        environ = {"BOOKSTORE_PORT": "9001"}  # os.environ, unless told otherwise
        return Config.from_env(environ, prefix="BOOKSTORE_", file=file, strict=True)


def mistakes(environ: dict[str, str]) -> tuple[str, ...]:
    try:
        Config.from_env(environ, prefix="BOOKSTORE_")
    except ConfigError as error:
        return tuple(error.problems)
    return ()


config = read_settings()
server = Server(config=config)
server.register(Book)


async def main() -> None:
    assert (config.port, config.service_name) == (9001, "book store")
    assert config.origin("port") == "BOOKSTORE_PORT"
    assert len(mistakes({"BOOKSTORE_PROT": "9001", "BOOKSTORE_LOG_JSON": "perhaps"})) == 2

    async with client(server) as http:
        answer = await http.get("/api/books")
        assert answer.headers["x-service-name"] == "book store"


if __name__ == "__main__":
    asyncio.run(main())
