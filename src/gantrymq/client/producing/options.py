"""`ProducerOptions`: options of a producer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gantrymq.client.options import ClientOptions, duration, option
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.errors import ClientError
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, TRACE_TOPIC
from gantrymq.times import duration_ms, duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of `Producer`. The defaults for batches are the same as in Java."""

    retry_times: int = option(
        2,
        "Attempts after a failed one, on another broker where there is one, within the send's timeout. While another "
        "broker becomes master, refused attempts don't count. An attempt counts if it may have stored the message, so "
        "0 means that the producer never stores a message twice.",
        minimum=0,
    )
    retry_when_not_stored_safely: bool = option(
        False, "Retries a send that a broker stored without the flush or the slave that its configuration demands."
    )
    try_timeout: float | timedelta | None = duration(
        None,
        "Timeout of each attempt but the last, in seconds. If it is None and the topic has several brokers, each of "
        "the first attempts gets 1 / (`retry_times` + 2) of the send's timeout. With the send's whole timeout, an "
        "attempt ends with the send, as in Java.",
        minimum=0.001,
    )
    send_latency_fault_enable: bool = option(
        True, "Avoids brokers that were slow or failed for some seconds, and prefers brokers that owe no responses."
    )
    start_detector_enable: bool = option(
        False, "Probes the brokers that failed, so that they are used again as soon as they respond."
    )
    linger: float | timedelta = duration(
        0.0,
        "How long a message waits for others of its topic or queue, to be sent in one request, in seconds; 0: no "
        "batches.",
        maximum=30,
    )
    batch_size: int = option(32 * 1024, "Largest batch of `linger`, bytes.", minimum=1, maximum=2 * 1024 * 1024)
    buffer_bytes: int = option(
        32 * 1024 * 1024, "Senders wait while the batches of `linger` have this many bytes in flight.", minimum=1
    )
    compress_over: int = option(4096, "Bodies of this size and larger are compressed, bytes.", minimum=0)
    compression: CompressionType = option(CompressionType.ZLIB, "Algorithm that compresses bodies.")
    max_message_size: int = option(
        4 * 1024 * 1024, "Largest body or batch, bytes; the producer rejects larger ones.", minimum=1, maximum=2**31 - 1
    )
    create_topic_key: str = option(
        AUTO_CREATE_TOPIC, "Topic whose permissions a new topic gets, if the broker creates topics on the first send."
    )
    default_topic_queue_nums: int = option(
        DEFAULT_TOPIC_QUEUE_NUMS,
        "Most queues of such a new topic; it has no more than the topic of `create_topic_key`.",
        minimum=1,
    )
    enable_trace: bool = option(False, "Writes a trace of each send to `trace_topic`.")
    trace_topic: str = option(TRACE_TOPIC, "Topic of the traces.")

    @property
    def try_timeout_ms(self) -> int | None:
        return None if self.try_timeout is None else duration_ms("try_timeout", self.try_timeout)

    @property
    def linger_s(self) -> float:
        return duration_s("linger", self.linger)

    def _check(self) -> None:
        ClientOptions._check(self)
        if not isinstance(self.compression, CompressionType):
            known = ", ".join(str(kind) for kind in CompressionType)
            raise ClientError(f"compression={self.compression!r}: must be one of {known}")
