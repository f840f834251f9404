"""Frames and epochs of controller mode."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import FrameError, StoreError
from gantrymq.replication.autoswitch_frames import (
    MAX_EPOCHS,
    AutoSwitchFrameReader,
    AutoSwitchReport,
    AutoSwitchReportReader,
    Hello,
    Leaving,
    MasterEpochs,
    Transfer,
    encode_autoswitch_report,
    encode_epochs,
    encode_hello,
    encode_leaving,
    encode_transfer_header,
)
from gantrymq.replication.epochs import Epoch, Epochs


def test_as_java_writes_them() -> None:
    assert encode_hello(Hello(3, sync_from_last_file=True)) == pack(">ihhq", 1, 1, 0, 3)
    # Java's master treats it like the frame above.
    assert encode_hello(Hello(3, sync_from_last_file=True, is_ours=True)) == pack(">ihhq", 1, 1, 2, 3)
    assert encode_autoswitch_report(77) == pack(">iq", 2, 77)
    # The ordinal of `HAConnectionState.SHUTDOWN`, for which Java's master closes the connection.
    assert encode_leaving(7) == pack(">iq", 4, 7)
    assert encode_epochs(500, [Epoch(2, 0), Epoch(5, 300)]) == pack(">iiqi", 1, 24, 500, 5) + pack(
        ">iqiq", 2, 0, 5, 300
    )
    assert encode_epochs(0, []) == pack(">iiqi", 1, 0, 0, -1)
    assert encode_transfer_header(310, 9, Epoch(5, 300), 305) == pack(">iiqiqq", 2, 9, 310, 5, 300, 305)


@given(st.lists(st.binary(max_size=60), max_size=6), st.lists(st.integers(0, 800), max_size=6))
def test_masters_frames_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    epoch = Epoch(5, 300)
    frames: list[MasterEpochs | Transfer] = [MasterEpochs(900, 5, (Epoch(2, 0), epoch))]
    data = encode_epochs(900, [Epoch(2, 0), epoch])
    for body in bodies:
        frames.append(Transfer(400, 5, 300, 350, body))
        data += encode_transfer_header(400, len(body), epoch, 350) + body
    reader, found, begin = AutoSwitchFrameReader(), [], 0
    for end in [*sorted(cuts), len(data)]:
        reader.feed(data[begin:end])
        begin = max(begin, end)
        while (frame := reader.next()) is not None:
            found.append(frame)
    assert found == frames


@given(st.lists(st.integers(0, 60), max_size=5))
def test_slaves_frames_in_any_pieces(cuts: list[int]) -> None:
    data = encode_hello(Hello(3)) + encode_autoswitch_report(5) + encode_autoswitch_report(6) + encode_leaving(9)
    reader, found, begin = AutoSwitchReportReader(), [], 0
    for end in [*sorted(cuts), len(data)]:
        found += reader.feed(data[begin:end])
        begin = max(begin, end)
    assert found[0] == Hello(3)
    assert found[-2:] == [AutoSwitchReport(6), Leaving(9)]


@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("is_async_learner", [False, True])
@pytest.mark.parametrize("sync_from_last_file", [False, True])
def test_hello(sync_from_last_file: bool, is_async_learner: bool, is_ours: bool) -> None:
    hello = Hello(3, sync_from_last_file, is_async_learner, is_ours)
    (found,) = AutoSwitchReportReader().feed(encode_hello(hello))
    # If both flags are set, the frame has no free value to mark a GantryMQ slave.
    assert found == hello._replace(is_ours=is_ours and not (sync_from_last_file and is_async_learner))


@pytest.mark.parametrize(
    "data",
    [
        pack(">iiqi", 7, 0, 0, 0),
        pack(">iiqi", 2, -1, 0, 0),
        pack(">iiqi", 1, 13, 0, 0),
        pack(">iiqi", 1, 12 * (MAX_EPOCHS + 1), 0, 0),
        pack(">iiqi", 2, 1 << 30, 0, 0),
    ],
    ids=["state", "negative", "half an epoch", "epochs", "size"],
)
def test_rubbish_of_masters(data: bytes) -> None:
    reader = AutoSwitchFrameReader()
    reader.feed(data)
    with pytest.raises(FrameError):
        reader.next()


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1", pack(">iq", 2, -1), pack(">ihhq", 1, 0, 0, -1), pack(">iq", 4, -1)],
    ids=["http", "offset", "id", "epoch"],
)
def test_rubbish_of_slaves(data: bytes) -> None:
    with pytest.raises(FrameError):
        AutoSwitchReportReader().feed(data)


def test_epoch_of_an_offset() -> None:
    epochs = Epochs([Epoch(2, 0), Epoch(5, 300), Epoch(6, 700)])
    assert epochs.at(0) == (Epoch(2, 0), 300)
    assert epochs.at(699) == (Epoch(5, 300), 700)
    assert epochs.at(700) == (Epoch(6, 700), None)
    assert Epochs([Epoch(5, 300)]).at(299) is None


def test_epochs_grow_only() -> None:
    epochs = Epochs()
    assert epochs.append(Epoch(2, 0))
    assert not epochs.append(Epoch(2, 100))
    assert epochs.append(Epoch(3, 100))
    assert not epochs.append(Epoch(1, 200))
    # Epoch 3 has no data.
    assert epochs.append(Epoch(5, 100))
    assert epochs.all() == (Epoch(2, 0), Epoch(5, 100))
    epochs.truncate_from(100)
    assert epochs.all() == (Epoch(2, 0),)


def test_what_is_gone_of_the_log_has_no_epochs() -> None:
    epochs = Epochs([Epoch(2, 0), Epoch(5, 300), Epoch(6, 700)])
    epochs.forget_before(300)
    assert epochs.all() == (Epoch(5, 300), Epoch(6, 700))
    epochs.forget_before(10_000)
    assert epochs.all() == (Epoch(6, 700),)


@pytest.mark.parametrize(
    ("own", "end", "other", "other_end", "point"),
    [
        ([(1, 0)], 100, [(1, 0)], 150, 100),
        ([(1, 0)], 150, [(1, 0)], 100, 100),
        # The old master continued to write in its epoch after the new epoch began.
        ([(1, 0)], 150, [(1, 0), (2, 100)], 300, 100),
        ([(1, 0), (2, 120)], 150, [(1, 0), (3, 100)], 300, 100),
        # Epochs with the same number but different start offsets.
        ([(1, 0), (2, 120)], 150, [(1, 0), (2, 100)], 300, 100),
        ([(1, 0)], 150, [(2, 0)], 100, None),
        ([], 0, [(2, 0)], 100, None),
    ],
)
def test_where_two_logs_parted(
    own: list[tuple[int, int]], end: int, other: list[tuple[int, int]], other_end: int, point: int | None
) -> None:
    first, second = Epochs(Epoch(*one) for one in own), Epochs(Epoch(*one) for one in other)
    assert first.consistent_point(end, second, other_end) == point
    assert second.consistent_point(other_end, first, end) == point


def test_file_of_java() -> None:
    # The example in the source of `utils/CheckpointFile`.
    text = "2\n773307083\n7-7000\n8-8000\n"
    assert Epochs.decode(text).all() == (Epoch(7, 7000), Epoch(8, 8000))
    assert Epochs.decode(text).encode() == text
    assert Epochs.decode("1\n0\n7-7000\n").all() == (Epoch(7, 7000),)


@pytest.mark.parametrize("text", ["", "2\n0\n7-7000\n", "1\n5\n7-7000\n", "1\n0\n7000\n", "x\n0\n"])
def test_damaged_file(text: str) -> None:
    with pytest.raises(StoreError, match="epochs is damaged"):
        Epochs.decode(text)
