"""The verdict table of lab/README.md, and the page of every claim."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import Claim, verdict_words
from harmax_lab.kit.experiment import Experiment
from pages.site import RESULTS, address, table

PAPERS = ("reproduced", "not reproduced", "not decided")
CONTROLS = ("holds", "does not hold", "not decided")


def judged() -> Iterator[tuple[Experiment[Any, Any], list[tuple[Claim, str]]]]:
    """Every experiment that has results, with its claims and the verdicts on them."""
    for name, experiment in EXPERIMENTS.items():
        path = RESULTS / name / "summary.json"
        if path.exists():
            verdicts = {entry["claim"]: entry["verdict"] for entry in json.loads(path.read_text())["verdicts"]}
            yield experiment, [(claim, verdict_words(verdicts[claim.id], claim)) for claim in experiment.claims]


def verdict_table() -> str:
    """How many claims of each experiment came back."""
    rows = []
    for experiment, claims in judged():
        own = Counter(verdict for claim, verdict in claims if not claim.control)
        controls = Counter(verdict for claim, verdict in claims if claim.control)
        counts = [own[word] for word in PAPERS] + [controls[word] for word in CONTROLS]
        link = f"[{experiment.title}]({address(f'lab/results/{experiment.name}')})"
        rows.append([link, experiment.figure, *(count or "" for count in counts)])
    columns = ["experiment", "in the paper", *PAPERS, "controls that hold", "that do not", "not decided"]
    return table(columns, rows)


def claims_page() -> str:
    """The text of lab/results/README.md."""
    parts = [
        "# Every claim",
        "Made from the stored runs by `make docs`. A control is a claim that the paper does not make: a check of the "
        "method, or one of the paper's claims under the matched protocol.",
    ]
    for experiment, claims in judged():
        rows = [
            (f"{'control: ' if claim.control else ''}{claim.statement.replace('|', chr(92) + '|')}", verdict)
            for claim, verdict in claims
        ]
        parts += [f"## [{experiment.title}]({experiment.name})", table([experiment.figure, "verdict"], rows)]
    return "\n\n".join(parts) + "\n"
