"""An app of Django with one producer for each process."""

import atexit
from threading import Lock

from django.apps import AppConfig
from django.conf import settings

from gantrymq import Producer, SyncProducer


class ShopConfig(AppConfig):
    name = "django_shop"

    _lock = Lock()
    _producer: SyncProducer | None = None

    @property
    def producer(self) -> SyncProducer:
        """The producer. The first request starts it, because a server can fork after `ready`."""
        with self._lock:
            if self._producer is None:
                producer = SyncProducer(Producer(settings.ROCKETMQ_NAME_SERVERS, "shop-django"))
                producer.start()
                atexit.register(producer.close)
                self._producer = producer
            return self._producer
