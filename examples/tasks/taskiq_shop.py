"""Tasks with taskiq: `taskiq worker taskiq_shop:broker` runs the tasks that `python taskiq_shop.py` sends."""

import asyncio

from gantrymq.integrations.taskiq import RocketMQBroker

broker = RocketMQBroker("127.0.0.1:9876")


@broker.task("send_invoice")
async def send_invoice(order: str, euros: float) -> None:
    print(f"invoice for {order}: {euros:.2f} euros", flush=True)


async def main() -> None:
    await broker.startup()
    await send_invoice.kiq("order-17", 42)
    await send_invoice.kicker().with_labels(delay=2).kiq("order-18", 7)  # in two seconds
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
