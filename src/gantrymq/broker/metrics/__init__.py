"""Prometheus metrics of a broker."""

from __future__ import annotations

from gantrymq.broker.metrics.broker_metrics import BrokerMetrics

__all__ = ["BrokerMetrics"]
