"""Random numbers: the functions of one `random.Random`, and unpredictable bytes for secrets."""

from __future__ import annotations

from random import Random, SystemRandom
from uuid import UUID

#: Seeded by the operating system.
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
#: For values that an attacker must not be able to predict.
secret_bytes = SystemRandom().randbytes


def uuid4() -> UUID:
    return UUID(bytes=randbytes(16), version=4)
