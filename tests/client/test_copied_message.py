"""Tests that messages can be copied, also without native code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from records import message_at

from gantrymq.protocol.message import Message

COPIES = [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))]


@pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("is_decoded", [False, True])
def test_a_received_message(copied: Callable[[Message], Message], is_decoded: bool) -> None:
    message = message_at(3)
    if is_decoded:
        message.properties["added"] = "x"
    other = copied(message)
    assert (other.topic, other.body, other.properties) == (message.topic, message.body, message.properties)


@pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_a_message_to_send(copied: Callable[[Message], Message]) -> None:
    message = Message("orders", b"body", tags="paid", keys=["k"], flag=3)
    other = copied(message)
    assert (other.topic, other.body, other.flag, other.properties) == ("orders", b"body", 3, message.properties)
