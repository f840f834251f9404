"""Tests of properties files, as java.util.Properties reads them, and of dataclasses filled from them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from stat import S_IMODE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.config import (
    MAX_FILE_BYTES,
    format_properties,
    from_properties,
    load_properties,
    parse_properties,
    replace_file,
    to_properties,
    unknown_keys,
)
from gantrymq.errors import ConfigError
from gantrymq.system import files


class Flush(StrEnum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass
class Storage:
    store_path_root_dir: Path = Path("/store")
    flush_disk_type: Flush = Flush.ASYNC
    disk_ratio: float = 0.75
    delete_when: str = "04"


@dataclass
class Identity:
    broker_name: str
    broker_ip1: str | None = field(default=None, metadata={"key": "brokerIP1"})
    listen_port: int = field(default=10911, metadata={"minimum": 0, "maximum": 65535})
    auto_create_topic_enable: bool = True
    namesrv_addr: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb:2\nc 3\nd\t4\ne  =  5\nf : 6", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6"}),
        ("# comment\n  ! another\n\n  a = 1", {"a": "1"}),
        ("# no continuation \\\na=1", {"a": "1"}),
        ("a=1,\\\n   2,\\\n#3\nb=4", {"a": "1,2,#3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=x\\ty\\nz\\q", {"a": "x\ty\nzq"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a==b", {"a": "=b"}),
        ("a=\\u00e9\\ud83d\\ude00", {"a": "é😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("lonely\nempty=", {"lonely": "", "empty": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=trailing blanks  ", {"a": "trailing blanks  "}),
        ("a=cut\\", {"a": "cut"}),
        ("=value", {"": "value"}),
        ("", {}),
    ],
)
def test_the_syntax_is_java_s(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text, source="x") == expected


def test_a_broken_escape_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf, line 3: .*four hexadecimal"):
        parse_properties("a=1\n\nb=\\u12x", source="broker.conf")


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(st.dictionaries(_TEXT, _TEXT, max_size=5))
def test_what_is_written_reads_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties), source="x") == properties


def test_a_file_may_be_utf8_or_latin1(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        path.write_bytes("brokerName=münchen\n".encode(encoding))
        assert load_properties(path) == {"brokerName": "münchen"}


def test_a_missing_or_huge_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf"):
        load_properties(tmp_path / "nowhere.conf")
    huge = tmp_path / "huge.conf"
    huge.write_bytes(b"a" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="not a configuration"):
        load_properties(huge)


def test_one_file_fills_several_classes() -> None:
    properties = {
        "brokerName": " a ",
        "brokerIP1": "10.0.0.1",
        "listenPort": " 11911 ",
        "autoCreateTopicEnable": "False",
        "namesrvAddr": "10.0.0.2:9876; 10.0.0.3:9876;",
        "storePathRootDir": "~/data",
        "flushDiskType": "SYNC_FLUSH",
        "diskRatio": "0.5",
        "brokerNmae": "typo",
    }
    assert from_properties(Identity, properties, source="x") == Identity(
        "a", "10.0.0.1", 11911, False, ["10.0.0.2:9876", "10.0.0.3:9876"]
    )
    assert from_properties(Storage, properties, source="x") == Storage(Path.home() / "data", Flush.SYNC, 0.5, "04")
    assert unknown_keys([Identity, Storage], properties) == ["brokerNmae"]


def test_a_configuration_prints_and_reads_back() -> None:
    config = Identity("a", None, 0, False, ["x:1", "y:2"])
    printed = to_properties(config)
    assert printed == {
        "brokerName": "a",
        "listenPort": "0",
        "autoCreateTopicEnable": "false",
        "namesrvAddr": "x:1;y:2",
    }
    assert from_properties(Identity, printed, source="x") == config
    assert to_properties(Storage())["flushDiskType"] == "ASYNC_FLUSH"


@pytest.mark.parametrize(
    ("cls", "key", "value", "why"),
    [
        (Identity, "listenPort", "9876x", "whole number"),
        (Identity, "listenPort", "", "whole number"),
        (Identity, "listenPort", "65536", "at least 0 and at most 65535"),
        (Identity, "listenPort", "-1", "at least 0"),
        (Identity, "autoCreateTopicEnable", "yes", "true or false"),
        (Storage, "flushDiskType", "SOMETIMES", "one of SYNC_FLUSH, ASYNC_FLUSH"),
        (Storage, "diskRatio", "much", "a number"),
    ],
)
def test_a_bad_value_names_key_value_and_file(cls: type, key: str, value: str, why: str) -> None:
    properties = {"brokerName": "a", key: value}
    with pytest.raises(ConfigError) as error:
        from_properties(cls, properties, source="broker.conf")
    assert f"broker.conf: {key}={value}: " in str(error.value)
    assert why in str(error.value)


def test_a_missing_required_key_is_named() -> None:
    with pytest.raises(ConfigError, match="brokerName is missing"):
        from_properties(Identity, {}, source="broker.conf")


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "broker.conf"
    replace_file(path, b"brokerName=a\n")
    path.chmod(0o600)
    replace_file(path, b"brokerName=b\n")
    assert path.read_bytes() == b"brokerName=b\n"
    assert S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o664)
    replace_file(path, b"brokerName=c\n")
    assert S_IMODE(path.stat().st_mode) == 0o664
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path, exists: bool) -> None:
    """The test uses a relative link to another link, through a linked directory."""
    target = tmp_path / "volume" / "broker.conf"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"brokerName=a\n")
        target.chmod(0o640)
    (tmp_path / "current").symlink_to("volume")
    (tmp_path / "linked.conf").symlink_to("current/broker.conf")
    path = tmp_path / "broker.conf"
    path.symlink_to("linked.conf")
    replace_file(path, b"brokerName=b\n")
    assert (os.readlink(path), os.readlink(tmp_path / "linked.conf")) == ("linked.conf", "current/broker.conf")
    assert target.read_bytes() == path.read_bytes() == b"brokerName=b\n"
    assert list(target.parent.iterdir()) == [target]
    if exists:
        assert S_IMODE(target.stat().st_mode) == 0o640


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.symlink_to("broker.conf")
    with pytest.raises(ConfigError, match=r"can't write .*broker\.conf"):
        replace_file(path, b"")
    assert path.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_replaced_file_keeps_its_owner(tmp_path: Path) -> None:
    """Otherwise the broker that owns the file could no longer read it."""
    path = tmp_path / "broker.conf"
    path.write_bytes(b"")
    os.chown(path, 1234, 1235)
    path.chmod(0o600)
    replace_file(path, b"brokerName=a\n")
    found = path.stat()
    assert (found.st_uid, found.st_gid, S_IMODE(found.st_mode)) == (1234, 1235, 0o600)


def test_a_replaced_file_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is synced, too. Otherwise a power failure could undo a change that was confirmed to an administrator."""
    synced: list[bytes] = []
    path = tmp_path / "broker.conf"
    monkeypatch.setattr(files, "sync_entries", lambda fd: synced.append(path.read_bytes()))
    replace_file(path, b"brokerName=a\n")
    assert synced == [b"brokerName=a\n"]


def test_a_file_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf").write_bytes(b"a file")
    with pytest.raises(ConfigError, match=r"can't write .*broker\.conf"):
        replace_file(tmp_path / "conf" / "broker.conf", b"")
