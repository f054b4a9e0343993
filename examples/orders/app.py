"""The shop with the settings of the environment: `maniflex run examples.orders.app:server`."""

import os
from pathlib import Path

from examples.orders.server import create_server, mailer_of
from examples.secret_files import secret_in
from maniflex import Config
from maniflex.storage import LocalStorage

DATA = Path(os.environ.get("SHOP_DATA", ".shop"))
server = create_server(
    Config.from_env(
        database=os.environ.get("DB_WRITE_URL") or f"sqlite:///{DATA}/shop.db",
        storage=os.environ.get("FILE_STORAGE") or LocalStorage(DATA / "pictures"),
        openapi_enabled=True,  # the description of the API and its page are for everybody
        docs_enabled=True,
    ),
    os.environ.get("SHOP_SECRET") or secret_in(DATA / "token_secret"),
    os.environ.get("SHOP_KEY") or secret_in(DATA / "encryption_key"),
    mailer=mailer_of(os.environ),
    local_webhooks=os.environ.get("SHOP_LOCAL_WEBHOOKS")
    == "true",  # endpoints on this machine, to try it out
)

if __name__ == "__main__":
    server.run()
