"""Tasks with Celery: `celery -A celery_shop worker` runs the tasks that `python celery_shop.py` sends."""

from celery import Celery

import gantrymq.integrations.celery  # noqa: F401  Registers rocketmq:// with Kombu.

app = Celery("shop", broker="rocketmq://127.0.0.1:9876")
app.conf.task_acks_late = True  # A task is done when it has ended, not when it is begun;
app.conf.task_reject_on_worker_lost = True  # also when the process that runs it is killed.
app.conf.worker_prefetch_multiplier = 1  # Tasks wait at the broker, not in the worker.


@app.task(name="send_invoice")
def send_invoice(order: str, euros: float) -> None:
    print(f"invoice for {order}: {euros:.2f} euros", flush=True)


if __name__ == "__main__":
    send_invoice.delay("order-17", 42)
    send_invoice.apply_async(("order-18", 7), countdown=2)  # in two seconds
