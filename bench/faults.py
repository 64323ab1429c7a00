"""The faults of a run (`chaos.py`), drawn from a seed."""

import random
from dataclasses import dataclass

# The duration of each fault: until it is lifted, or until the program that ended is started again.
SECONDS = {
    "kill": (0.2, 2.5),  # SIGKILL of a worker
    "stop": (3.5, 6.0),  # SIGSTOP of a worker, for longer than silence is borne
    "pause": (1.0, 1.0),  # and for less
    "term": (0.2, 2.5),  # SIGTERM of a worker
    "boss": (0.2, 2.5),  # SIGKILL of the boss
    "boss-stop": (3.5, 6.0),  # SIGSTOP of the boss
    "loss": (2.0, 5.0),  # a worker's line loses 1 to 20 % of all packets
    "cut": (10.0, 10.0),  # and all of them
    "rate": (2.0, 5.0),  # and has 1 Mbit/s
}
# The rows of the table, in its order.
NAMES = {
    "kill": "a worker is killed (SIGKILL)",
    "stop": "a worker is stopped for long (SIGSTOP)",
    "pause": "a worker is stopped for a moment",
    "term": "a worker is told to leave (SIGTERM)",
    "boss": "the boss is killed, and started with `--resume`",
    "boss-stop": "the boss is stopped for long",
    "loss": "a worker's line loses packets",
    "cut": "a worker's line is cut",
    "rate": "a worker's line is slow",
    "two at once": "two of these at once",
}
NETWORK = ("loss", "cut", "rate")
BORNE = ("pause",)  # nobody may be lost by these


@dataclass(frozen=True)
class Fault:
    """A fault, its duration, and the share (0 to 1) that picks its target."""

    kind: str
    seconds: float
    whom: float
    share: float  # of packets that are lost


@dataclass(frozen=True)
class Strike:
    """One fault after some seconds of training, or two, with the seconds between them."""

    wait: float
    faults: tuple
    between: float

    @property
    def name(self):
        """Its row of the table."""
        return self.faults[0].kind if len(self.faults) == 1 else "two at once"


@dataclass(frozen=True)
class Outcome:
    """How a strike went: the longest time without a step that had not been done before, and how
    often it took a recovery."""

    strike: Strike
    still: float
    recoveries: int
    stood: float = 0.0  # for so long a program that was stopped really was

    def measured(self):
        """The outcome as a result file has it."""
        return {
            "fault": self.strike.name,
            "still": self.still,
            "recoveries": self.recoveries,
            "stood": self.stood,
        }


def draw(seed, kinds, two):
    """Strikes without end, the same for the same seed, each kind equally often; a share `two` of
    them are of two faults."""
    chosen, deck = random.Random(seed), []

    def fault():
        if not deck:
            deck.extend(chosen.sample(kinds, len(kinds)))
        kind = deck.pop()
        return Fault(
            kind, chosen.uniform(*SECONDS[kind]), chosen.random(), chosen.uniform(0.01, 0.2)
        )

    while True:
        count = 2 if chosen.random() < two else 1
        yield Strike(
            chosen.uniform(0.1, 1.5), tuple(fault() for _ in range(count)), chosen.uniform(0.0, 4.0)
        )
