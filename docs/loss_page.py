"""The page is_it_the_loss.md: its template with counts from the code, leaks from the data, numbers from results."""

# K shown tokens, D features

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harmax_lab.algorithmic.protocols import POWERED
from harmax_lab.algorithmic.runs import BODIES
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import said_and_rule, verdict_words
from harmax_lab.losses import LargeMarginHead
from harmax_lab.studies import ablation, confounds, exponents, rivals
from harmax_lab.studies.rivals import MEASURES, SQUARE_TITLE, VERDICTS_AGAINST
from harmax_lab.studies.score_runs import DIRECTIONS, structure_score
from harmax_lab.studies.tables_and_figures import WITHOUT
from harmax_lab.studies.tuned_losses import APPENDIX, ARMS, LOSSES, VARIANTS, reads_out, settings_of
from harmax_lab.tasks import PROTOCOLS, TASKS, Split, Task, audit, find_task, make_split
from pages import fields
from pages.site import DOCS, filled

TEMPLATE = DOCS / "templates" / "is_it_the_loss.md"
STUDIES = ("ablation", "confounds", "exponents", "authors_losses", "rivals_mlp", "rivals_transformer")
MEANS_OF = (SQUARE_TITLE, "Effects of the two switches", confounds.GAINS_TITLE, confounds.CHANGES_TITLE)
"""Tables of which this page shows the rows of means over tasks."""
WHOLE = (f"{VERDICTS_AGAINST} harmonic", WITHOUT)
CLOUDS = 100  # of random points, for what structure is found in none
NOT_RUN = "Not run yet."
SHOWN = {
    "ablation": "embeddings_mlp_authors",
    "confounds": "gains",
    "exponents": "exponents_matched",
    "authors_losses": "structure",
    "rivals_mlp": "effects_structure_matched",
    "rivals_transformer": "effects_structure_matched",
}
"""The one figure of a study that this page shows."""


def page(results: Path) -> str:
    """The text of the page. Fields of its sentences that begin with "code" are filled by `facts`."""
    text = fields.fill(TEMPLATE.read_text(), {**fields.summaries(results), "code": facts()})
    return filled(text, sections(results))


def facts() -> dict[str, Any]:
    """What sentences say of data and losses, as tables for fields."""
    spec, head = rivals.FULL, LargeMarginHead(2, 2)
    steps = math.ceil(len(make_split(find_task("genealogy"), 0).train) / 32)
    after = math.ceil((head.annealing_base ** (1 / head.annealing_power) - 1) / head.annealing_rate)
    margin = {
        "updates": after,
        "of the search": after / (steps * min(map(spec.search_epochs, spec.models))),
        "of the final runs": after / (steps * min(map(spec.epochs, spec.models))),
    }
    different = [{"task": name, **{protocol: _facts(name, protocol) for protocol in PROTOCOLS}} for name in TASKS]
    tables = [{"title": "different facts", "rows": different}, {"title": "large margin", "rows": [margin]}]
    return {"verdicts": [], "tables": tables}


def _facts(name: str, protocol: str) -> float:
    splits = [make_split(find_task(name, protocol=protocol), seed) for seed in rivals.FULL.seeds]
    return float(np.mean([audit(split).train_facts for split in splits]))


def sections(results: Path) -> dict[str, str]:
    """Everything between markers, by the markers' name."""
    return {
        "tasks": tasks_table(),
        "studies": studies_table(),
        "families": families_table(),
        "losses": losses_table(),
        "search": search_words(),
        **{name: study_section(name, results) or NOT_RUN for name in STUDIES},
    }


def tasks_table() -> str:
    """Of each task what its test rows have in common with the training rows, and what structure noise has."""
    rows = []
    for name in TASKS:
        row: dict[str, Any] = {"task": find_task(name).title}
        for protocol in PROTOCOLS:
            task = find_task(name, protocol=protocol)
            splits = [make_split(task, seed, train_fraction=rivals.FULL.train_fraction) for seed in rivals.FULL.seeds]
            row[f"rows, {protocol}"] = f"{len(splits[0].train)} + {len(splits[0].test)}"
            for words, share in (("also in training", leak), ("so or reordered", reordered)):
                row[f"{words}, {protocol}"] = f"{100 * np.mean([share(split) for split in splits]):.0f} %"
        row["structure of noise"] = "{:.2f} ({:.2f} to {:.2f})".format(*noise(find_task(name)))
        rows.append(row)
    return markdown(rows)


def leak(split: Split) -> float:
    """Share of the test rows that are training rows too."""
    return audit(split).leak


def reordered(split: Split) -> float:
    """Share of the test rows whose tokens, in some order, are a training question with the same answer."""
    learned = {(*sorted(row[:-1]), row[-1]) for row in split.train.tolist()}
    return float(np.mean([(*sorted(row[:-1]), row[-1]) in learned for row in split.test.tolist()]))


def noise(task: Task) -> tuple[float, float, float]:
    """Mean, least and greatest structure of clouds of random points."""
    generator = np.random.default_rng(0)
    shape_KD = (len(task.structure.values), 16)
    found = [structure_score(task.structure, generator.normal(size=shape_KD)) for _ in range(CLOUDS)]
    mean, low, high = (round(float(value), 2) + 0.0 for value in (np.mean(found), min(found), max(found)))  # no -0.00
    return mean, low, high


def studies_table() -> str:
    """How long, on what and how often each study trains."""
    rows = []
    for name in STUDIES:
        study = EXPERIMENTS[name]
        spec = study.profiles["full"]
        tuned = {one: "nothing" if one in spec.protocols else "" for one in PROTOCOLS}
        tuned["matched"] = "each arm" if name.startswith("rivals") else tuned["matched"]
        rows.append(
            {
                "study": name,
                **{
                    f"epochs, {words}": spec.epochs(model) if model in spec.models else ""
                    for model, words in BODIES.items()
                },
                **{f"tasks, {one}": len(spec.tasks_under(one)) if tuned[one] else "" for one in ("matched", "authors")},
                "seeds": len(spec.seeds),
                "runs": len(study.work.cells(spec)),
                **{f"tuned, {one}": tuned[one] for one in ("matched", "authors")},
            }
        )
    return markdown(rows)


def families_table() -> str:
    """How many claims a study has, and how many tests a corrected p-value is corrected for."""
    spec, seeds = rivals.FULL, len(rivals.FULL.seeds)
    counts = {}
    for protocol, losses in (("matched", spec.losses), ("authors", APPENDIX)):
        counts[protocol] = (len(losses) - 1) * len(spec.tasks_under(protocol))
    least = 2 / 2**seeds
    whole = [place for place in ablation.FULL.places() if place.protocol == "matched"]
    effects = len(ablation.SWITCHES) * sum(len(place.each()) for place in whole)
    fixed = len(exponents.EXPONENTS)
    asked = sum(len(place.each()) for place in confounds.FULL.places())
    gains, changes = len(confounds.CONDITIONS) * asked, len(confounds.CHANGES) * asked
    rows = [
        {"what": f"claims of `{name}`, each judged at its own level", "how many": len(EXPERIMENTS[name].claims)}
        for name in STUDIES
    ]
    rows += [
        {
            "what": f"comparisons of one measure with either of the rivals' models, {protocol}: one family",
            "how many": count,
        }
        for protocol, count in counts.items()
    ]
    others = {
        "measures, each with a family of its own": len(MEASURES),
        "effects of the two switches in one score: of one protocol in `ablation`; tuned, of one model": (
            f"{effects}; {effects // len(BODIES)}"
        ),
        "rivals in a claim about all, matched: one family, one shared level": len(LOSSES) - 1,
        "the same, authors": len(APPENDIX) - 1,
        "fixed exponents in a claim about one of them; about the learnable one": f"{fixed - 1}; {fixed}",
        "heads that both together are held against in the ablation": len(ablation.HEADS) - 1,
        "gains in one score in `confounds`: one family; changes of them: another": f"{gains}; {changes}",
        f"least p-value of {seeds} seeds; times the largest family": f"{least:.1e}; {least * max(counts.values()):.1e}",
    }
    rows += [{"what": what, "how many": count} for what, count in others.items()]
    return markdown(rows)


def losses_table() -> str:
    """Every arm as it is built and trained under the matched protocol, before its search."""
    rows = []
    for name, arm in ARMS.items():
        how = settings_of("matched", "mlp", name, epochs=1)
        head = how.build(find_task("lattice"), "mlp", arm.head).head
        names = ("exponent", "softening") if arm.head in POWERED else (*getattr(head, "settings", ()), "precision")
        constants = {name: getattr(head, name) for name in names if hasattr(head, name)}
        rows.append(
            {
                "arm": arm.label,
                "tied": "yes" if how.tied else "no",
                "bias": "yes" if how.bias else "no",
                "batch": how.batch_size,
                "constants": ", ".join(f"{key.replace('_', ' ')} {float(value):g}" for key, value in constants.items()),
                "rows are measured": "at length one" if arm.head in DIRECTIONS else "as they are",
                "under authors too": "yes" if name in APPENDIX else "no",
            }
        )
    readers = [ARMS[name].label for name in LOSSES if reads_out(name)]
    return (
        f"{len(LOSSES)} losses and {len(VARIANTS)} variants of two of them. {len(APPENDIX)} losses run under the "
        f"authors' protocol too, at the authors' learning rate and weight decay. Classes are read out under: "
        f"{'; '.join(readers)}."
        f"\n\n{markdown(rows)}"
    )


def search_words() -> str:
    """The grid of the search, in words."""
    spec = rivals.FULL
    rates, decays = ([f"{one:g}" for one in some] for some in (spec.learning_rates, spec.weight_decays))
    tasks = ", ".join(find_task(task).title.lower() for task in spec.search_tasks)
    settings, seeds = len(rates) * len(decays), len(spec.search_seeds)
    return (
        f"Learning rates {', '.join(rates)} times weight decays {', '.join(decays)}: {settings} settings, each on "
        f"{seeds} seeds that are not among the {len(spec.seeds)} and on {len(spec.search_tasks)} tasks ({tasks}), MLPs "
        f"for {spec.search_mlp_epochs} epochs, transformers for {spec.search_transformer_epochs}."
    )


def study_section(name: str, results: Path) -> str:
    """Every claim of a study with what was found, and its tables of verdicts and of effects; "" without results."""
    path = results / name / "summary.json"
    if not path.exists():
        return ""
    summary, claims = json.loads(path.read_text()), {claim.id: claim for claim in EXPERIMENTS[name].claims}
    asked: dict[str, list[dict[str, str]]] = {}
    for one in summary["verdicts"]:
        if (claim := claims.get(one["claim"])) is None:
            continue  # published before the claims changed, and not judged again yet
        # What is the same of every model and protocol is said once: most end with where they are asked, in brackets.
        before, _, inside = claim.statement.removesuffix(").").rpartition(" (")
        statement, where = (before, inside) if claim.statement.endswith(").") else (claim.statement[:-1], "")
        row = {"where": where, "found": one["sentence"], "verdict": verdict_words(one["verdict"], claim)}
        asked.setdefault(statement, []).append(row)
    parts = [f"Profile {summary['profile']}; everything is in [its results]({name})."]
    if (results / name / f"{SHOWN[name]}.png").exists():
        parts.append(f"![{name}]({name}/{SHOWN[name]}.png)")
    for statement, rows in asked.items():
        said, rule = said_and_rule(f"{statement}.")
        parts += [f"**{said}** {rule}".rstrip(), markdown(rows)]
    for table in summary["tables"]:
        shown = table["rows"]
        if table["title"].startswith(MEANS_OF):
            shown = [row for row in shown if row["task"].startswith("mean")]
        elif not table["title"].startswith(WHOLE):
            continue
        if shown:
            parts += [f"{table['title']}:", markdown(shown)]
    return "\n\n".join(parts)


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """A table of rows that have the same keys."""
    rows = list(rows)
    lines = ["| " + " | ".join(_entry(value) for value in row.values()) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0]), *lines])


def _entry(value: Any) -> str:
    text = "" if value is None else f"{value:.2g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
