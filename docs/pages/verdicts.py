"""The verdict table of lab/README.md, the page of every claim, and the page of rules and readings."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import VERDICTS, Claim, verdict_words
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.rules import rule_book
from harmax_lab.paper import SENTENCES, sources_of
from harmax_lab.paper.readings import READINGS
from pages.site import RESULTS, address, table

CONTROLS = ("holds", "does not hold", "not decided")


class Judged(NamedTuple):
    """A claim with the published verdict on it."""

    experiment: Experiment[Any, Any]
    claim: Claim
    verdict: str
    reason: str = ""
    """The published sentence; empty where nothing is published."""

    @property
    def key(self) -> str:
        """The experiment and the claim."""
        return f"{self.experiment.name}/{self.claim.id}"

    @property
    def words(self) -> str:
        """The verdict in words: those of a control are others."""
        return verdict_words(self.verdict, self.claim)


def judged() -> Iterator[Judged]:
    """Every claim with its published verdict; one that no published run answers is not decided, or cannot be run."""
    for name, experiment in EXPERIMENTS.items():
        path = RESULTS / name / "summary.json"
        stored = json.loads(path.read_text())["verdicts"] if path.exists() else []
        verdicts = {entry["claim"]: (entry["verdict"], entry["sentence"]) for entry in stored}
        for claim in experiment.claims:
            yield Judged(experiment, claim, *verdicts.get(claim.id, (claim.unanswered("").verdict,)))


def tally() -> str:
    """How many of the paper's claims came back, in a sentence."""
    counts = Counter(one.verdict for one in judged() if not one.claim.control)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return f"Of {sum(counts.values())} claims of the paper: {words}."


def verdict_table() -> str:
    """How many claims of each experiment came back."""
    rows, found = [], list(judged())
    for name, experiment in EXPERIMENTS.items():
        own = [one for one in found if one.experiment.name == name]
        paper = Counter(one.verdict for one in own if not one.claim.control)
        controls = Counter(one.words for one in own if one.claim.control)
        counts = [paper[word] for word in VERDICTS] + [controls[word] for word in CONTROLS]
        published = (RESULTS / name).is_dir()
        link = f"[{experiment.title}]({address(f'lab/results/{name}')})" if published else experiment.title
        rows.append([link, experiment.figure, *(count or "" for count in counts)])
    columns = ["experiment", "in the paper", *VERDICTS, "controls that hold", "that do not", "not decided"]
    return f"{tally()}\n\n{table(columns, rows)}"


def claims_page() -> str:
    """The text of lab/results/README.md: the paper's sentences in their order, then our controls."""
    by_sentence: dict[str, list[Judged]] = {key: [] for key in SENTENCES}
    controls: dict[str, list[Judged]] = {}
    for one in judged():
        for key in one.claim.sentences:
            by_sentence[key].append(one)
        if one.claim.control:
            controls.setdefault(one.experiment.name, []).append(one)
    rows, again = [], []
    for key, sentence in SENTENCES.items():
        said = f"{sentence.where}, {sentence.number}: “{cell(sentence.words)}”"
        if sentence.restates:
            verdicts = Counter(one.verdict for source in sources_of(key) for one in by_sentence[source])
            named = ", ".join(f"{SENTENCES[other].where}, {SENTENCES[other].number}" for other in sentence.restates)
            again.append([said, named, ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())])
        for one in by_sentence[key]:
            link = linked(one.experiment.name, one.experiment.name)
            rows.append([said, cell(one.claim.statement), f"**{one.verdict}**", link])
    parts = [
        "# Every claim of the paper",
        f"{tally()} Each row is a sentence of [the paper](https://arxiv.org/abs/2502.01628), by section and number of "
        "the sentence there, with the statement that we judge. [How claims are judged](rules.md) has the rules and how "
        "we read words such as “commonly”. Not listed are definitions, settings of the paper's runs, motivation, and "
        "statements about other work. Made from the published runs by `make docs`.",
        table(["the paper says", "judged as", "verdict", "experiment"], rows),
        "## Sentences that say the same again",
        table(["the paper says", "says the same as", "verdicts there"], again),
        "## Controls",
        "Checks that the paper does not make: of the method, or of its claims under cleaner conditions.",
    ]
    for name, found in controls.items():
        experiment = EXPERIMENTS[name]
        lines = [(cell(one.claim.statement), one.words) for one in found]
        parts += [f"### {linked(experiment.title, name)}", table([experiment.figure, "verdict"], lines)]
    return "\n\n".join(parts) + "\n"


def rules_page() -> str:
    """The text of lab/results/rules.md."""
    parts = [
        "# How claims are judged",
        "A claim is reproduced, not reproduced, not decided, or not run. The last word is for what cannot be run here, "
        "such as ImageNet; evidence from something smaller stands beside it. Not decided does not mean equal. No rule "
        "was registered in advance.",
        "## When a claim is not decided",
        "The same rules for all experiments, applied by the program in this order (`harmax_lab.kit.rules`).",
        table(["rule", "when"], [(name, cell(text)) for name, text in rule_book()]),
        "## How words are read",
        "Words such as “commonly” have one reading for all experiments (`harmax_lab.paper.readings`).",
        table(["the paper's words", "what must be measured"], [(one.words, cell(one.meaning)) for one in READINGS]),
    ]
    return "\n\n".join(parts) + "\n"


def linked(words: str, name: str) -> str:
    """Return words with a link to an experiment's page, if it is published."""
    return f"[{words}]({name})" if (RESULTS / name).is_dir() else words


def cell(text: str) -> str:
    """Return text as it may stand in a table."""
    return text.replace("|", "\\|")
