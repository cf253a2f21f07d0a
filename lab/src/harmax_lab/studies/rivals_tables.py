"""Tables of the rivals: verdicts, every comparison behind them, the tuned ablation, the search, and the epochs."""

# L learning rates, W weight decays, T tasks of the search

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, in_epochs
from harmax_lab.studies.arms import ARMS, RivalCell
from harmax_lab.studies.comparisons import (
    EPOCHS,
    MEASURES,
    OUTCOMES,
    Compared,
    compare_all,
    effect_rows,
    reference_of,
)
from harmax_lab.studies.outcomes import BODIES, SCORES, Outcomes, Place, collect, mean_of, versus, written
from harmax_lab.studies.rivals_claims import CORNERS, SQUARE, TIED_RIVALS
from harmax_lab.studies.search import SearchSpec, ends_of, with_their_search
from harmax_lab.studies.shared_tables import epoch_table, structure_tables, without_one

if TYPE_CHECKING:
    from harmax_lab.studies.rivals import RivalsSpec

Results = Mapping[RivalCell, CellResult]
VERDICTS_AGAINST = "Verdicts: each loss against"
SQUARE_TITLE = "Tuned: distance and HarMax crossed"


def tables(spec: "RivalsSpec", results: Results) -> tuple[Table, ...]:
    """Return all tables, those without a row left out."""
    outcomes = collect(results, lambda cell: cell.loss)
    labels = {loss: ARMS[loss].label for loss in spec.losses}
    made = [
        *(verdict_table(spec, outcomes, protocol, "harmonic") for protocol in spec.protocols),
        *(verdict_table(spec, outcomes, protocol, "linear") for protocol in spec.protocols),
        square_table(spec, outcomes),
        robust_table(spec, outcomes, "structure"),
        robust_table(spec, outcomes, "accuracy"),
        score_table(spec, outcomes),
        *structure_tables(outcomes, spec.places(), labels),
        comparison_table(spec, outcomes),
        search_table(spec, results),
        search_by_task(spec, results),
        epoch_table(outcomes, spec.places(), labels, "loss"),
    ]
    return tuple(table for table in made if table.rows)


def compared(spec: "RivalsSpec", outcomes: Outcomes, protocol: str, base: str, measure: str) -> list[Compared]:
    """Compare all losses with a reference, tied or untied as they are, on every task and model of a protocol."""
    whole = [place for place in spec.places() if place.protocol == protocol]
    places = [one for place in whole for one in place.alone()]
    return compare_all(outcomes, places, spec.losses, base, measure)


def verdict_table(spec: "RivalsSpec", outcomes: Outcomes, protocol: str, base: str) -> Table:
    """Count on how many tasks each loss is better, worse or undecided against a reference."""
    whole = [place for place in spec.places() if place.protocol == protocol]
    rows = []
    for measure, words in MEASURES.items():
        found = compared(spec, outcomes, protocol, base, measure)
        for loss in dict.fromkeys(one.loss for one in found):
            against = reference_of(loss, base, protocol)
            counts = Counter(one.outcome for one in found if one.loss == loss)
            means = {place.model: _mean(outcomes, place, loss, against, measure) for place in whole}
            rows.append(
                {
                    "loss": ARMS[loss].label,
                    "against": ARMS[against].label,
                    "measure": words,
                    **{name: counts[name] for name in OUTCOMES},
                    "of": sum(counts.values()),
                    **{f"mean difference, {BODIES[model]}": mean for model, mean in means.items()},
                }
            )
    how = "each loss tuned" if protocol == "matched" else "untuned"
    title = f"{VERDICTS_AGAINST} {ARMS[base].label}, tasks; {protocol} protocol, {how}"
    return Table(title, tuple(rows))


def _mean(outcomes: Outcomes, place: Place, loss: str, reference: str, measure: str) -> str | None:
    return "" if measure == EPOCHS else written(versus(outcomes, place, loss, reference, measure))


def square_table(spec: "RivalsSpec", outcomes: Outcomes) -> Table:
    """Tabulate what distance and HarMax do where each of the four losses is tuned."""
    there = [place for place in spec.places() if place.protocol == "matched" and set(CORNERS) <= set(spec.losses)]
    places = [place for whole in there for place in whole.each()]
    title = f"{SQUARE_TITLE}, with spherical softmax for the inner product under HarMax: mean over seeds [95 %]"
    return Table(title, tuple(effect_rows(outcomes, places, SQUARE)))


def robust_table(spec: "RivalsSpec", outcomes: Outcomes, score: str) -> Table:
    """Tabulate how much better each tuned loss is than harmonic loss in a score, with each task left out.

    Tied rivals are held against the paper's exponent too.
    """
    there = {loss for protocol, _, _, loss in outcomes if protocol == "matched"}
    ran = [loss for loss in spec.losses if loss in there]
    pairs = [(loss, reference_of(loss, "harmonic", "matched")) for loss in ran if loss != "harmonic"]
    if "harmonic_root" in ran:
        pairs += [(loss, "harmonic_root") for loss in ran if loss in TIED_RIVALS]
    differences = {
        f"{ARMS[loss].label} minus {ARMS[against].label}": {loss: 1.0, against: -1.0} for loss, against in pairs
    }
    return without_one(outcomes, [place for place in spec.places() if place.protocol == "matched"], differences, score)


def score_table(spec: "RivalsSpec", outcomes: Outcomes) -> Table:
    """Tabulate the scores of every loss."""
    rows = [
        {
            "protocol": place.protocol,
            "models": BODIES[place.model],
            "loss": ARMS[loss].label,
            "task": one.words,
            **{words: mean_of(outcomes, one, loss, score) for score, words in SCORES.items()},
        }
        for place in spec.places()
        for loss in spec.losses
        for one in place.each()
        if (one.protocol, one.model, one.tasks[0], loss) in outcomes
    ]
    return Table("Scores: mean over seeds [95 %]", tuple(rows))


def comparison_table(spec: "RivalsSpec", outcomes: Outcomes) -> Table:
    """Tabulate every comparison with harmonic: effect size and interval, then p-values."""
    rows = [
        {
            "protocol": protocol,
            "models": BODIES[one.place.model],
            "task": one.place.words,
            "loss": ARMS[one.loss].label,
            "against": ARMS[one.against].label,
            "measure": MEASURES[measure],
            "difference [95 %]": in_epochs(one.found.difference) if measure == EPOCHS else written(one.found),
            "higher on": one.found.greater,
            "lower on": one.found.less,
            "ties": one.found.ties,
            "p, signed ranks": one.found.rank_p,
            "p, Holm": one.p,
            "verdict": one.outcome,
        }
        for protocol in spec.protocols
        for measure in MEASURES
        for one in compared(spec, outcomes, protocol, "harmonic", measure)
    ]
    return Table("Every comparison with harmonic, paired over seeds", tuple(rows))


def search_table(spec: SearchSpec, results: Results) -> Table:
    """Tabulate the whole search: accuracy of every setting, which was chosen, and what of it is at an end."""
    tasks = ", ".join(TITLES[task].lower() for task in spec.search_tasks)
    rows = []
    for (loss, model), result in with_their_search(results).items():
        late_LW = result.arrays["search_late"].mean((2, 3))
        rate, decay = result.metrics["choice"]
        settings = {
            f"{one:g}, {other:g}": round(float(late_LW[i, j]), 3)
            for i, one in enumerate(spec.learning_rates)
            for j, other in enumerate(spec.weight_decays)
        }
        rows.append(
            {
                "loss": ARMS[loss].label,
                "models": BODIES[model],
                "learning rate": spec.learning_rates[rate],
                "weight decay": spec.weight_decays[decay],
                "at an end": " and ".join(ends_of(spec, (rate, decay))),
                **settings,
            }
        )
    return Table(
        f"The search: test accuracy by learning rate, weight decay; {len(spec.search_seeds)} held-out seeds; {tasks}",
        tuple(rows),
    )


def search_by_task(spec: SearchSpec, results: Results) -> Table:
    """Tabulate what was found on each task of the search: by the setting that was chosen, and by the best for it."""
    rows = []
    for (loss, model), result in with_their_search(results).items():
        late_LWT = result.arrays["search_late"].mean(3)
        chosen_T, best_T = late_LWT[tuple(result.metrics["choice"])], late_LWT.max((0, 1))
        columns: dict[str, float] = {}
        for task, chosen, best in zip(spec.search_tasks, chosen_T, best_T, strict=True):
            columns[f"{TITLES[task]}, chosen"] = round(float(chosen), 3)
            columns[f"{TITLES[task]}, best"] = round(float(best), 3)
        rows.append({"loss": ARMS[loss].label, "models": BODIES[model], **columns})
    return Table("The search by task: test accuracy of the setting chosen, and of the best for that task", tuple(rows))
