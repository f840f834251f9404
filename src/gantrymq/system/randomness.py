"""Chance: the functions of `random`, of one generator."""

from __future__ import annotations

from random import Random
from uuid import UUID

#: Seeded by the system.
GENERATOR = Random()

choice = GENERATOR.choice
choices = GENERATOR.choices
getrandbits = GENERATOR.getrandbits
randbytes = GENERATOR.randbytes
randint = GENERATOR.randint
random = GENERATOR.random
randrange = GENERATOR.randrange
sample = GENERATOR.sample
shuffle = GENERATOR.shuffle
uniform = GENERATOR.uniform


def uuid4() -> UUID:
    return UUID(bytes=randbytes(16), version=4)
