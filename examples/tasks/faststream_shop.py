"""A service with FastStream: `faststream run faststream_shop:app` answers orders with invoices.

Its AsyncAPI page: `faststream docs gen faststream_shop:app`. Orders for it: `python faststream_shop.py`.
"""

import asyncio

from faststream import FastStream
from pydantic import BaseModel

from gantrymq.integrations.faststream import RocketMQBroker
from gantrymq.integrations.faststream.annotations import RocketMQMessage

broker = RocketMQBroker("127.0.0.1:9876")
app = FastStream(broker)


class Order(BaseModel):
    what: str
    euros: float


class Invoice(BaseModel):
    text: str


@broker.subscriber("shop-orders", group="shop-billing")
@broker.publisher("shop-invoices", tags="invoice")
async def bill(order: Order, message: RocketMQMessage) -> Invoice:
    return Invoice(text=f"invoice for {message.raw_message.keys[0]}: {order.euros:.2f} euros for {order.what}")


@broker.subscriber("shop-invoices", group="shop-post", tags="invoice")
async def post(invoice: Invoice) -> None:
    print(invoice.text, flush=True)


async def main() -> None:
    async with broker:
        await broker.publish(Order(what="apples", euros=42), "shop-orders", keys="order-17")
        await broker.publish(Order(what="figs", euros=7), "shop-orders", keys="order-18", delay=2)


if __name__ == "__main__":
    asyncio.run(main())
