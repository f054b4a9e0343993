"""Something to sell, an admin and a customer, for a shop to try out."""

from decimal import Decimal
from pathlib import Path

from examples.orders.models import Product, User
from maniflex import Server
from maniflex.middleware import auth

PRODUCTS = {"Tea": "4.50", "Coffee": "7.20", "Biscuits": "3.00"}
FIRST_STOCK = 6  # few, so that the first orders leave too little
PICTURE = Path(__file__).with_name("tea.png")
ADMIN, CUSTOMER = "admin@example.com", "ada@example.com"


async def load(server: Server, password: str) -> None:
    """Have the accounts with this password, and products where there are none."""
    await _account(server, ADMIN, password, name="Admin", role="admin")
    await _account(server, CUSTOMER, password, name="Ada")
    if not await server.db(Product).count():
        picture = await server.files.store(PICTURE, content_type="image/png")
        pictures = {"Tea": picture.key}
        for name, price in PRODUCTS.items():
            await server.db(Product).create(
                name=name, price=Decimal(price), stock=FIRST_STOCK, picture=pictures.get(name)
            )


async def _account(server: Server, email: str, password: str, **values: str) -> None:
    users = await server.db(User).list({"email": email})
    if not users:
        hashed = await auth.hash_password(password)
        await server.db(User).create(email=email, password=hashed, **values)
    elif not await auth.verify_password(password, users[0].password):
        await server.db(User).update(users[0].id, password=await auth.hash_password(password))
