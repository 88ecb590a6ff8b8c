"""The columns of the table: what each shows, what it says, and what it does not."""

from dataclasses import dataclass

from benchmarks.peers.record import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    heading: str
    measure: str
    unit: str
    says: str
    #: Of all single observations, this share is not above the figure; without it: the median of the rounds.
    share: float | None = None
    more_is_better: bool = True
    digits: int = 0

    def figure(self, entry: Entry) -> float | None:
        if self.share is None:
            return entry.median(self.measure)
        return entry.percentile(self.measure, self.share)

    def spread(self, entry: Entry) -> tuple[float, float] | None:
        """Least and greatest of the rounds. A p99 has none: of the few observations of a round it is the worst."""
        if self.share is None:
            values = entry.values(self.measure)
        elif self.share == 0.5:
            values = entry.percentiles(self.measure, self.share)
        else:
            values = []
        return (min(values), max(values)) if len(values) > 1 else None

    def text(self, value: float) -> str:
        # A small figure is not told as nothing.
        digits = self.digits if value >= 1 or not self.digits else 2 if value >= 0.01 else 3
        return f"{value:,.{digits}f}"


THROUGHPUT = (
    Column(
        heading="enqueue",
        measure="enqueue",
        unit="calls/s",
        says="Single calls, one after the other, each committed for itself, no worker running. It says what a request "
        "pays for each call. It does not say what several clients reach together, and a queue in Redis is quick here "
        "because it neither waits for a disk nor joins the caller's transaction.",
    ),
    Column(
        heading="bulk enqueue",
        measure="bulk",
        unit="calls/s",
        says="10,000 calls through the peer's own call for many, where it has one. Loops around the single call do not "
        "count. It says nothing about larger arguments.",
    ),
    Column(
        heading="drain",
        measure="drain",
        unit="runs/s",
        says="10,000 no-ops that appear at once, from that moment to the last stored result, with two processes that "
        "were started and warmed up before. It says what a run costs when the run itself costs nothing: the queue's "
        "own work. With runs of 50 ms all are alike (see *50 ms*).",
    ),
    Column(
        heading="first 1,000 of 1k",
        measure="backlog_1000",
        unit="runs/s",
        says="The first 1,000 results with 1,000 waiting. It is the measure for the two columns that follow, and lower "
        "than a drain for those that start in small steps.",
    ),
    Column(
        heading="of 100k",
        measure="backlog_100000",
        unit="runs/s",
        says="The same with 100,000 waiting. A claim that sorts or scans what waits shows here.",
    ),
    Column(
        heading="of 1M",
        measure="backlog_1000000",
        unit="runs/s",
        says="The same with 1,000,000 waiting, each row or message as the peer itself writes it, copied inside the "
        "server. Measured once where filling takes long. It does not say how long an enqueue takes with so many "
        "waiting.",
    ),
)

LATENCY = (
    Column(
        heading="start p50",
        measure="pickup",
        unit="ms",
        share=0.5,
        more_is_better=False,
        digits=1,
        says="An idle worker: from the call of an enqueue to the first line of the function. Single runs, with pauses "
        "of 40 to 80 ms. It says how soon work begins when there is nothing else to do; under load the queue decides.",
    ),
    Column(
        heading="start p99",
        measure="pickup",
        unit="ms",
        share=0.99,
        more_is_better=False,
        digits=1,
        says="The same, the slowest in a hundred, of all rounds together. With so few observations it is close to the "
        "worst one, and a busy machine shows here first.",
    ),
    Column(
        heading="result p50",
        measure="result",
        unit="ms",
        share=0.5,
        more_is_better=False,
        digits=1,
        says="From before an enqueue until its caller holds the value, in the best way that the peer offers: a "
        "blocking wait where there is one, else a look every 2 ms. Such looks take a processor's time from the worker, "
        "so that it is more than the start and the return together.",
    ),
    Column(
        heading="result p99",
        measure="result",
        unit="ms",
        share=0.99,
        more_is_better=False,
        digits=1,
        says="The same, the slowest in a hundred.",
    ),
    Column(
        heading="chain",
        measure="chain",
        unit="ms a step",
        more_is_better=False,
        digits=1,
        says="100 steps, each after the one before, from before the first enqueue to the last value, divided by 100. "
        "Where a peer hands values on, they are handed on. Empty: it has no such thing.",
    ),
    Column(
        heading="fan-out",
        measure="fan",
        unit="ms",
        more_is_better=False,
        says="1,000 no-ops and one run that waits for all of them, from before the first enqueue to the value of the "
        "last. Where the join is given the values, it is given them. Empty: it has no such thing.",
    ),
    Column(
        heading="50 ms",
        measure="naps",
        unit="% of ideal",
        says="200 runs that sleep 50 ms, against two processes that do nothing but that. It says how well slots are "
        "kept filled. Most real work is of this kind: here the peers differ least.",
    ),
)

COST = (
    Column(
        heading="memory",
        measure="memory",
        unit="MiB",
        more_is_better=False,
        says="All worker processes and what they have started, after they have worked, shared pages counted once "
        "(PSS). Neither PostgreSQL nor Redis is in it; a Ray that the worker starts is.",
    ),
    Column(
        heading="statements",
        measure="statements",
        unit="a run",
        more_is_better=False,
        digits=1,
        says="What workers send to PostgreSQL while they drain, BEGIN and COMMIT included, by the server's own log, "
        "divided by the runs; commands to Redis are added, and the note says how many they are. It does not say how "
        "much each of them costs.",
    ),
)

GROUPS = {"Throughput": THROUGHPUT, "Latency and workflows": LATENCY, "Cost": COST}


def showing(measure: str) -> Column:
    """The first one that shows this measure: of latencies, the one with their medians."""
    return next(one for columns in GROUPS.values() for one in columns if one.measure == measure)
