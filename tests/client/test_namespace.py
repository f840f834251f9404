from __future__ import annotations

import pytest
from facts import FACTS

from gantrymq.client.namespace import without_namespace, wrap_namespace


@pytest.mark.parametrize(("namespace", "name", "wrapped", "unwrapped"), FACTS["namespaces"])
def test_names_are_those_of_java(namespace: str, name: str, wrapped: str, unwrapped: str) -> None:
    assert wrap_namespace(namespace, name) == wrapped
    assert without_namespace(name, namespace) == unwrapped
    assert without_namespace(wrapped, namespace) == without_namespace(name, namespace)
