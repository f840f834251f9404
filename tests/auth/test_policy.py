"""Tests that the correct policy entry decides a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.auth.policy import Acl, Action, Decision, Pattern, PolicyType, Resource, ResourceType
from gantrymq.protocol.bodies.auth import PolicyEntryInfo, PolicyInfo

HOST = "127.0.0.1"
PUB, SUB = (Action.PUB,), (Action.SUB,)


def entry(resource: str, actions: str = "All", decision: str = "Allow", ips: str = "") -> PolicyEntryInfo:
    return PolicyEntryInfo(resource, actions.split(","), ips.split(",") if ips else [], decision)


def acl(*entries: PolicyEntryInfo, default: list[PolicyEntryInfo] | None = None) -> Acl:
    policies = [PolicyInfo(entries=list(entries))] if entries else []
    return Acl.from_info([*policies, *([PolicyInfo("Default", default)] if default else [])])


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def decided_by(acl: Acl, name: str, actions: tuple[Action, ...] = PUB, host: str = HOST) -> str | None:
    found = acl.decisive(topic(name), actions, host)
    return None if found is None else f"{found.resource} {found.decision.value}"


@pytest.mark.parametrize("text", ["Topic:a", "Topic:a*", "Topic:*", "Group:g", "Cluster:c*", "Namespace:n", "*"])
def test_resources_as_text(text: str) -> None:
    assert str(Resource.parse(text)) == text
    assert str(Resource.parse(text.lower())) == text


@pytest.mark.parametrize("text", ["", "Topic", "Topic:", "Queue:a", "Topic a", ":a"])
def test_what_is_no_resource(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Resource.parse(text)


@given(st.text(min_size=1, max_size=8).filter(lambda name: "*" not in name), st.text(max_size=4))
def test_a_prefix_matches_what_begins_with_it(prefix: str, rest: str) -> None:
    pattern = Resource.parse(f"Topic:{prefix}*")
    assert pattern.matches(topic(prefix + rest))
    assert not pattern.matches(topic("\x00" + prefix)) or prefix.startswith("\x00")
    assert not pattern.matches(Resource(ResourceType.GROUP, prefix + rest))


def test_the_more_exact_resource_decides_in_any_order() -> None:
    entries = [
        entry("*", decision="Deny"),
        entry("Topic:*"),
        entry("Topic:or*", decision="Deny"),
        entry("Topic:orders*"),
        entry("Topic:orders", decision="Deny"),
    ]
    for order in (entries, entries[::-1]):
        rules = acl(*order)
        assert decided_by(rules, "orders") == "Topic:orders Deny"
        assert decided_by(rules, "orders2") == "Topic:orders* Allow"
        assert decided_by(rules, "ore") == "Topic:or* Deny"
        assert decided_by(rules, "x") == "Topic:* Allow"
        found = rules.decisive(Resource(ResourceType.GROUP, "g"), SUB, HOST)
        assert found is not None
        assert found.decision is Decision.DENY


def test_only_entries_about_the_action_and_the_address_count() -> None:
    rules = acl(entry("Topic:a", "Pub"), entry("Topic:*", "Sub", ips="10.0.0.0/8,192.168.1.5,fd00::/8"))
    assert decided_by(rules, "a", PUB) == "Topic:a Allow"
    assert decided_by(rules, "a", SUB) is None
    assert decided_by(rules, "a", SUB, "10.1.2.3") == "Topic:* Allow"
    assert decided_by(rules, "a", SUB, "192.168.1.5") == "Topic:* Allow"
    assert decided_by(rules, "a", SUB, "192.168.1.6") is None
    assert decided_by(rules, "a", SUB, "fd00::1") == "Topic:* Allow"
    # The caller needs permission for only one of the actions.
    assert decided_by(rules, "a", (Action.GET, Action.PUB)) == "Topic:a Allow"


def test_default_entries_count_where_no_custom_one_fits() -> None:
    rules = acl(entry("Topic:a*", "Pub", "Deny"), default=[entry("Topic:abc", "Pub"), entry("Topic:b", "Pub")])
    assert decided_by(rules, "abc") == "Topic:a* Deny"
    assert decided_by(rules, "b") == "Topic:b Allow"
    assert decided_by(rules, "c") is None


ALL_TOPICS = Resource(ResourceType.TOPIC, "", Pattern.ANY)
ANYTHING = Resource(ResourceType.ANY, "", Pattern.ANY)


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([entry("Topic:*", "Get")], True),
        ([entry("*", "All")], True),
        ([entry("Topic:*", "Get"), entry("Topic:a", "Pub", "Deny")], True),
        ([entry("Topic:*", "Get"), entry("Group:g", "Get", "Deny")], True),
        ([entry("Topic:*", "Get"), entry("*", "All", "Deny")], True),
        ([entry("Topic:*", "Get"), entry("Topic:a", "Get", "Deny", "10.0.0.0/8")], True),
        ([entry("Topic:*", "Get"), entry("Topic:a", "Get", "Deny")], False),
        ([entry("Topic:*", "Get"), entry("Topic:a*", "All", "Deny")], False),
        ([entry("Topic:*", "Get", "Deny"), entry("*", "All")], False),
        ([entry("Topic:a*", "All")], False),
        ([entry("Topic:*", "Pub")], False),
        ([entry("Group:*", "All")], False),
        ([entry("Topic:*", "Get", ips="10.0.0.0/8")], False),
    ],
)
def test_all_topics_are_allowed_where_none_is_denied(entries: list[PolicyEntryInfo], allowed: bool) -> None:
    for order in (entries, entries[::-1]):
        found = acl(*order).decisive(ALL_TOPICS, (Action.GET, Action.LIST), HOST)
        assert (found is not None and found.decision is Decision.ALLOW) == allowed
    # The default entry allows all topics, and one topic is denied by its own entry.
    rules = acl(entry("Topic:a", "Get", "Deny"), default=[entry("Topic:*", "Get")])
    found = rules.decisive(ALL_TOPICS, (Action.GET,), HOST)
    assert found is not None
    assert found.decision is Decision.DENY


def test_anything_is_what_is_allowed_from_there() -> None:
    anything = (Action.ANY,)
    assert acl(entry("*", "All", "Deny")).decisive(ANYTHING, anything, HOST) is None
    assert acl(entry("Topic:a", "Pub", ips="10.0.0.0/8")).decisive(ANYTHING, anything, HOST) is None
    for some in (entry("Topic:a", "Pub"), entry("Group:g", "Sub"), entry("Cluster:c", "Get")):
        assert acl(entry("*", "All", "Deny"), some).decisive(ANYTHING, anything, HOST) is not None
    assert acl(default=[entry("Topic:a", "Pub")]).decisive(ANYTHING, anything, HOST) is not None


def test_changes() -> None:
    rules = acl(entry("Topic:a"), entry("Topic:b"))
    rules.update(acl(entry("Topic:a", decision="Deny"), entry("Topic:c")))
    assert [str(found.resource) for found in rules.policies[PolicyType.CUSTOM].values()] == [
        "Topic:a",
        "Topic:b",
        "Topic:c",
    ]
    assert decided_by(rules, "a") == "Topic:a Deny"
    for name in ("a", "b", "c", "unknown"):
        rules.remove(PolicyType.CUSTOM, topic(name))
    assert rules.policies == {}


def test_as_it_is_stored() -> None:
    rules = acl(entry("Topic:a", "Pub,Sub", ips="10.0.0.0/8"), default=[entry("*", "All", "Deny")])
    info = rules.info("User:alice")
    assert Acl.from_info(info.policies) == rules
    assert [policy.policy_type for policy in info.policies] == ["Custom", "Default"]
    assert [policy.policy_type for policy in rules.info("User:alice", "Topic").policies] == ["Custom"]


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (PolicyEntryInfo(None, ["Pub"], [], "Allow"), "resource is null"),
        (PolicyEntryInfo("Topic", ["Pub"], [], "Allow"), "Topic:NAME"),
        (entry("Topic:a", "Any"), "can not be Any"),
        (PolicyEntryInfo("Topic:a", [], [], "Allow"), "actions is empty"),
        (entry("Topic:a", "Publish"), "Publish"),
        (entry("Topic:a", decision="Perhaps"), "decision is null or illegal"),
        (entry("Topic:a", ips="10.0.0.0/33"), "10.0.0.0/33"),
        (entry("Topic:a", ips="localhost"), "localhost"),
    ],
)
def test_what_is_no_entry_is_refused(info: PolicyEntryInfo, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        acl(info)
    with pytest.raises(ValueError, match="empty"):
        Acl.from_info([])
    with pytest.raises(ValueError, match="empty"):
        Acl.from_info([PolicyInfo()])
