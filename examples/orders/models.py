"""The records of the shop."""

from decimal import Decimal
from typing import Literal

from maniflex import Model, Operation, field, file


class User(Model):
    """An account. Its address is its name, so it is good once and for all."""

    email: str = field(unique=True, immutable=True, filterable=True, max_length=254)
    password: str = field(writeonly=True, min_length=8, max_length=128)
    name: str = field(filterable=True, sortable=True, min_length=1, max_length=100)
    role: Literal["admin", "customer"] = field(default="customer", filterable=True)


class Product(Model):
    name: str = field(filterable=True, sortable=True, unique=True, min_length=1, max_length=200)
    price: Decimal = field(filterable=True, sortable=True, min=0)
    stock: int = field(default=20, filterable=True, sortable=True)  # below zero: on back order
    picture: str | None = file(default=None, max_size="2MB", accept=["image/*"], acl="public", sniff=True)


class Order(Model, operations=[*Operation.READS, Operation.DELETE], versioned=True, events=True):
    """Placed with `POST /orders/place`; what it cost then, whatever the product costs now.

    Each write of one is an event, such as `order.created`, in the transaction of the write.
    """

    customer_id: str = field(relation="User", filterable=True, on_delete="restrict")
    item: str = field(filterable=True)
    price: Decimal
    status: Literal["placed", "shipped"] = field(default="placed", filterable=True)


class Receipt(Model, operations=Operation.READS):
    """What was mailed to the customer."""

    order_id: str = field(filterable=True, unique=True, on_delete="cascade")
    text: str


class Shipment(Model, operations=Operation.READS):
    """What the warehouse makes of the message."""

    order_id: str = field(filterable=True, unique=True, on_delete="cascade")
