"""Who finds room for a request that waits, when others have taken what they can get."""

from __future__ import annotations

from gantrymq.remoting.room import Room, Rooms

MB = 1 << 20


def rooms() -> Rooms:
    return Rooms(1000, 64 * MB, 100, 16 * MB)


def fill(room: Room, size: int) -> int:
    """As many requests of so many bytes as it takes."""
    taken = 0
    while room.take(size):
        taken += 1
    return taken


def test_what_is_given_back_can_be_taken_again() -> None:
    of_all = rooms()
    room = of_all.of("10.0.0.1:1")
    taken = fill(room, 1000)
    assert taken == 100
    assert (of_all.all.requests, of_all.all.bytes) == (100, 100_000)
    for _ in range(taken):
        room.give_back(1000)
    assert (of_all.all.requests, of_all.all.bytes) == (0, 0)
    assert fill(room, 1000) == taken


def test_one_connection_has_its_own_bound() -> None:
    assert fill(rooms().of("10.0.0.1:1"), 4 * MB) == 4


def test_one_request_is_taken_however_long_it_is_where_nothing_waits() -> None:
    assert rooms().of("10.0.0.1:1").take(16 * MB + 4096)


def test_four_connections_leave_room_for_others() -> None:
    of_all = rooms()
    for port in range(4):
        fill(of_all.of(f"10.0.0.1:{port}"), 4 * MB)
    assert of_all.of("10.0.0.1:5").take(MB)
    assert of_all.of("10.0.0.2:1").take(4 * MB)


def test_a_crowd_of_one_host_leaves_half_to_others() -> None:
    of_all = rooms()
    for port in range(500):
        fill(of_all.of(f"10.0.0.1:{port}"), 100_000)
    assert of_all.all.bytes <= 32 * MB
    assert of_all.all.requests <= 500
    assert of_all.of("10.0.0.2:1").take(10 * MB)


def test_a_crowd_of_many_hosts_leaves_room_for_small_requests() -> None:
    of_all = rooms()
    for host in range(200):
        for port in range(10):
            fill(of_all.of(f"10.0.0.{host}:{port}"), MB)
    assert of_all.all.bytes < 64 * MB
    assert of_all.of("10.0.1.1:1").take(100_000)


def test_hosts_that_ask_for_nothing_are_forgotten() -> None:
    of_all = rooms()
    busy = of_all.of("10.0.0.1:1")
    assert busy.take(1000)
    for number in range(5000):
        of_all.of(f"10.1.{number}:1")
    assert len(of_all._hosts) <= 1001
    assert of_all.of("10.0.0.1:2").shared is busy.shared
