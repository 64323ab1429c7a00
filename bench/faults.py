"""What may strike a run (`chaos.py`): drawn from a seed, and counted in a table."""

import random
from dataclasses import dataclass
from statistics import median

# How long each fault lasts: until it is lifted, or until the program that ended is started again.
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
NETWORK = ("loss", "cut", "rate")
BORNE = ("pause",)  # nobody may be lost by these


@dataclass(frozen=True)
class Fault:
    """What strikes, for how long, and which of those that are at work (0 to 1)."""

    kind: str
    seconds: float
    whom: float
    share: float  # of packets that are lost


@dataclass(frozen=True)
class Strike:
    """One fault after some seconds of training, or two, the second so many seconds after the first."""

    wait: float
    faults: tuple
    between: float

    @property
    def name(self):
        """Its row of the table."""
        return self.faults[0].kind if len(self.faults) == 1 else "two at once"


@dataclass(frozen=True)
class Outcome:
    """How a strike went: the longest time without a step that had not been done before, and how often it took a recovery."""

    strike: Strike
    still: float
    recoveries: int
    stood: float = 0.0  # for so long a program that was stopped really was


def drawn(seed, kinds, two):
    """Strikes without end, the same for the same seed, each kind equally often; a share `two` of them are of two faults."""
    chosen, deck = random.Random(seed), []

    def fault():
        if not deck:
            deck.extend(chosen.sample(kinds, len(kinds)))
        kind = deck.pop()
        return Fault(kind, chosen.uniform(*SECONDS[kind]), chosen.random(), chosen.uniform(0.01, 0.2))

    while True:
        count = 2 if chosen.random() < two else 1
        yield Strike(chosen.uniform(0.1, 1.5), tuple(fault() for _ in range(count)), chosen.uniform(0.0, 4.0))


def table(outcomes, equal):
    """What was found, a row for each kind of fault and one for all."""
    lines = [
        "| fault | times | recovered | of these without a recovery | seconds lost: median, worst | bits equal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    names = [name for name in (*SECONDS, "two at once") if any(outcome.strike.name == name for outcome in outcomes)]
    rows = {name: [outcome for outcome in outcomes if outcome.strike.name == name] for name in names} | {"all": outcomes}
    for name, row in rows.items():
        if row:
            borne = sum(outcome.recoveries == 0 for outcome in row)
            lost = [outcome.still for outcome in row]
            cells = (name, len(row), len(row), borne, f"{median(lost):.2f}, {max(lost):.2f}", "yes" if equal else "**no**")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
