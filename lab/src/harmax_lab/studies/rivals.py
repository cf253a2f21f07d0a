"""Harmonic loss against the losses people would otherwise use, each at its best. The paper has no such comparison.

    harmax run rivals_mlp                  three losses, one task, cut short: under a minute on two CPU cores
    harmax run rivals_mlp --full           17 losses and 5 variants, five tasks, 20 seeds; meant for a GPU
    harmax run rivals_transformer --full   the same with transformers: a study of its own, since nothing is compared
                                           across models

Matched protocol: every arm's learning rate and weight decay come from the same search on held-out seeds
(tuned_losses.py); then the arm is trained on the authors' 20 seeds, which no search has seen. Authors' protocol:
published losses of the three families that the paper's appendix discusses, on its two tasks, all at the authors'
learning rate and weight decay. (`authors_losses` has the comparison that the appendix runs.) Arms are tied and without
bias unless their label says otherwise. Structure is that of the input embedding; untying changes its initial weights
too. In the tuned ablation, distance and HarMax crossed, spherical softmax, p ~ (w . x)^2, stands for the inner product
under HarMax.
"""

# A arms, T tasks, L learning rates, W weight decays, R held-out seeds

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import holm
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment, Work
from harmax_lab.kit.judges import SIGNIFICANT
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.rules import Choice
from harmax_lab.kit.tables import Table, in_epochs
from harmax_lab.studies import compare_arms as compare
from harmax_lab.studies import tables_and_figures as show
from harmax_lab.studies import tuned_losses as tuned
from harmax_lab.studies.compare_arms import MARGIN, Place, Rule, minus
from harmax_lab.studies.score_runs import SCORES
from harmax_lab.studies.tuned_losses import APPENDIX, ARMS, LABELS, LOSSES, RivalCell, reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIVALS = tuple(name for name in LOSSES if name != "harmonic")
TIED_RIVALS = tuple(name for name in RIVALS if ARMS[name].tied)
SQUARE = compare.switches("spherical")
CORNERS = tuple(SQUARE["interaction"])


@dataclass(frozen=True, kw_only=True)
class RivalsSpec(tuned.SearchSpec):
    """Settings of the comparison."""

    losses: tuple[str, ...] = tuple(ARMS)
    authors_tasks: tuple[str, ...] = compare.PAPERS_TASKS
    mlp_epochs: int = 4000
    """Fewer than the authors' 7000, as for transformers, so that the study takes minutes on a GPU."""
    transformer_epochs: int = 3000

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Name an arm by its loss."""
        return cell.protocol, cell.model, cell.task, cell.loss


FULL = RivalsSpec(seeds=anchors.SEEDS)
"""Of both models; a study has one of them."""


def cells(spec: RivalsSpec) -> list[RivalCell]:
    """List every protocol, loss, model, task and seed; the authors' protocol has those of the appendix's families."""
    return [
        RivalCell(place.protocol, task, place.model, tuned.find_arm(loss).head, spec.train_fraction, seed, loss)
        for place, loss in product(spec.places(), spec.losses)
        if place.protocol == "matched" or loss in APPENDIX
        for task, seed in product(place.tasks, spec.seeds)
    ]


def _chosen(rule: Rule, results: Results) -> list[Choice]:
    """Return what the search chose for the arms that a claim rests on.

    A claim that holds, or a difference of two arms, rests on all arms. A broken claim about all rests on any one of the
    arms that break it, and on its reference: on the pair with the fewest choices at an end.
    """
    place = next(one for one in results.spec.places(results) if one.runs)
    finding = rule.judge(place)
    chosen = {loss: results.spec.choices_of(loss, place.metrics(loss)[0]) for loss in place.arms}
    breaking = finding.numbers.get(compare.BREAKING) if finding.holds is False else None
    pairs = [[chosen[loss] for loss in pair] for pair in breaking.items()] if breaking else [list(chosen.values())]
    rests_on = [[choice for choices in arms for choice in choices] for arms in pairs]
    return min(rests_on, key=lambda choices: sum(choice.at_end for choice in choices))


def _judge_inside(place: Place) -> Finding:
    ends = {loss: place.metrics(loss)[0]["at_end"] for loss in place.arms}
    at_end = [f"{LABELS[loss]} ({names})" for loss, names in ends.items() if names]
    return Finding(
        not at_end,
        f"{len(at_end)} of {len(ends)} choices lie at an end{': ' + ', '.join(at_end) if at_end else ''}.",
        {"at_end": len(at_end), "choices": len(ends)},
    )


Question = tuple[str, Rule, Sequence[str]]  # what is claimed of tuned arms, by which rule, and the arms it rests on


def _two(ours: str, theirs: str, score: str = "structure", *, alike: bool = False) -> Question:
    one, other, words = LABELS[ours], LABELS[theirs], SCORES[score]
    same = f"{one} and {other} give the same {words} within {MARGIN}"
    said = same if alike else f"{one} gives a higher {words} than {other}"
    rule = compare.above(minus(ours, theirs), f"{words.capitalize()}, {one} minus {other}", score, alike=alike)
    return f"Both tuned, {said}", rule, (ours, theirs)


def _all(rivals: Sequence[str], ours: str, score: str = "structure") -> Question:
    pairs = {loss: reference_of(loss, ours, "matched") for loss in rivals}
    some = "rival" if rivals == RIVALS else "tied rival"
    more = f"{LABELS[ours]} gives more structure than every {some}"
    none = f"no {some} is more accurate in test than {LABELS[ours]} by more than {MARGIN}"
    said = f"Each tuned, {more if score == 'structure' else none}, on average over the tasks"
    untied = f"; {READERS} are compared with untied harmonic" * (rivals == RIVALS)
    limit = 0.0 if score == "structure" else MARGIN
    rule = compare.none_ahead(pairs, LABELS, score, limit=limit, name_breaking=True)
    return said + untied, rule, (*pairs, *pairs.values())


def _effect(name: str, words: str) -> Question:
    said = f"{words} in structure lies above 0, over the four tuned arms that cross inner product and distance, "
    return f"{said}softmax and HarMax", compare.above(SQUARE[name], f"{words} in structure"), CORNERS


READERS = "losses that read classes off features"
QUESTIONS: dict[str, Question] = {
    "structure_first": _all(RIVALS, "harmonic"),
    "accuracy_unbeaten": _all(RIVALS, "harmonic", "accuracy"),
    "structure_over_linear": _two("harmonic", "linear"),
    "accuracy_over_linear": _two("harmonic", "linear", "accuracy"),
    "untied_over_linear": _two("harmonic_untied", "linear_untied"),
    "root_over_two": _two("harmonic_root", "harmonic"),
    "root_first": _all(TIED_RIVALS, "harmonic_root"),
    "root_unbeaten": _all(TIED_RIVALS, "harmonic_root", "accuracy"),
    "tying_is_nothing": _two("harmonic_untied", "harmonic", alike=True),
    "bias_is_nothing": _two("linear_bias", "linear", alike=True),
    "tuned_distance": _effect("distance", "The main effect of the distance"),
    "tuned_harmax": _effect("HarMax", "The main effect of HarMax"),
    "tuned_interaction": _effect("interaction", "The interaction of distance and HarMax"),
}
TYING = {
    "mlp": f"As in the authors' code only cross-entropy has a bias; all are tied except {READERS}",
    "transformer": f"As in the authors' code harmonic is untied here, and rivals are tied except {READERS}: this does "
    "not compare losses alone",
}


def claims_of(model: str, full: RivalsSpec = FULL) -> list[Claim]:
    """Return the claims about one model; `full` is the spec that decides them."""
    claim = partial(compare.study_claim, suffix=model, full=full, model=model)
    where = f"{BODIES[model]}, matched protocol, tied and without bias unless named otherwise"
    matched = partial(claim, protocol="matched", where=where)
    untuned = compare.none_ahead(dict.fromkeys(APPENDIX[1:], "harmonic"), LABELS, "structure", name_breaking=True)
    some = ("harmonic", "linear")  # of all rivals one is enough to say something, though the claim stays open
    return [
        claim(
            "untuned_structure_first",
            "Harmonic loss gives more structure than cross-entropy and eight published losses of the three families "
            "that the appendix discusses, at the authors' learning rate and weight decay, on average over lattice and "
            "modular addition",
            untuned._replace(words=f"{untuned.words}. {TYING[model]}"),
            protocol="authors",
            where=f"{BODIES[model]}, authors protocol",
            arms=APPENDIX,
            must=some,
            paper="The appendix runs two losses, on the log-probabilities of a harmonic head: see authors_losses.",
        ),
        *(
            matched(
                name,
                said,
                rule,
                arms=arms,
                must=some if set(RIVALS) <= set(arms) else arms,
                choices=partial(_chosen, rule),
            )
            for name, (said, rule, arms) in QUESTIONS.items()
        ),
        matched(
            "choices_inside",
            "The search is wide enough: no chosen setting lies at an end of the grid",
            Rule("A weight decay of 0 is no end", _judge_inside),
            tasks=(),
        ),
    ]


EPOCHS = "epochs"
MEASURES = {**SCORES, EPOCHS: "epochs until it generalizes"}
OUTCOMES = ("better", "worse", "undecided")
VERDICTS_AGAINST = "Verdicts: each loss against"
SQUARE_TITLE = "Tuned: distance and HarMax crossed"
HOW = {"matched": "each loss tuned", "authors": "untuned"}


def comparisons(places: Iterable[Place], losses: Iterable[str], base: str, measure: str) -> list[dict[str, Any]]:
    """Tabulate losses against their references on every task, by one key of `MEASURES`; all rows are one family.

    Of epochs the median difference is taken, of scores the mean. A loss is better or worse where both the interval and
    the p-value of the signed-rank test, corrected by Holm's rule, say so.
    """
    rows, epochs = [], measure == EPOCHS
    for loss, place in product([one for one in losses if one != base], show.alone(places)):
        against = reference_of(loss, base, place.protocol)
        one = place.epochs_later(loss, against) if epochs else place.contrast(minus(loss, against), measure)
        if one is not None:
            side = one.difference.above(0)
            row = {
                **place.columns,
                "loss": LABELS[loss],
                "against": LABELS[against],
                "measure": MEASURES[measure],
                "difference [95 %]": in_epochs(one.difference) if epochs else compare.written(one),
                "higher on": one.greater,
                "lower on": one.less,
                "ties": one.ties,
                "p, signed ranks": one.rank_p,
            }
            rows.append((row, "undecided" if side is None else "better" if side != epochs else "worse"))
    corrected = holm([row["p, signed ranks"] for row, _ in rows])
    return [
        {**row, "p, Holm": p, "verdict": clear if p < SIGNIFICANT else "undecided"}
        for (row, clear), p in zip(rows, corrected, strict=True)
    ]


def _verdicts(places: Sequence[Place], losses: Sequence[str], base: str) -> Iterator[dict[str, Any]]:
    """Count on how many tasks each loss is better, worse or undecided against a reference."""
    for measure, words in MEASURES.items():
        counts = Counter((row["loss"], row["verdict"]) for row in comparisons(places, losses, base, measure))
        for loss in losses:
            own = {outcome: counts[LABELS[loss], outcome] for outcome in OUTCOMES}
            if not any(own.values()):
                continue
            against = reference_of(loss, base, places[0].protocol)
            row: dict[str, Any] = {"loss": LABELS[loss], "against": LABELS[against], "measure": words}
            row |= own | {"of": sum(own.values())}
            for place in places:
                mean = compare.written(place.contrast(minus(loss, against), measure)) if measure != EPOCHS else ""
                row[f"mean difference, {BODIES[place.model]}"] = mean
            yield row


def _searches(results: Results) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the metrics of one run of each loss and model that has its search beside it."""
    first = f"search {results.spec.grid[0]}"
    return {(cell.loss, cell.model): one.metrics for cell, one in results.items() if first in one.metrics}


def _search_tables(results: Results) -> tuple[Table, Table]:
    spec, searched, by_task = results.spec, [], []
    for (loss, model), found in _searches(results).items():
        row = {"loss": LABELS[loss], "models": BODIES[model]}
        chosen = {"learning rate": found["learning_rate"], "weight decay": found["weight_decay"]}
        accuracies = {name: round(found[f"search {name}"], 3) for name in spec.grid}
        searched.append({**row, **chosen, "at an end": found["at_end"] or "", **accuracies})
        both = product(spec.search_tasks, ("chosen", "best"))
        of_task = {f"{TITLES[task]}, {which}": round(found[f"search {task}, {which}"], 3) for task, which in both}
        by_task.append({**row, **of_task})
    tasks = ", ".join(TITLES[task].lower() for task in spec.search_tasks)
    title = "The search: test accuracy by learning rate, weight decay"
    return (
        Table(f"{title}; {len(spec.search_seeds)} held-out seeds; {tasks}", tuple(searched)),
        Table("The search by task: test accuracy of the setting chosen, and of the best for that task", tuple(by_task)),
    )


def tables(results: Results) -> list[Table]:
    """Tabulate verdicts, the tuned ablation, scores, every comparison, the search and epochs."""
    spec, places = results.spec, results.spec.places(results)
    by_protocol = {one: [place for place in places if place.protocol == one] for one in spec.protocols}
    matched = by_protocol.get("matched", [])
    ran = {loss for place in matched for loss in place.arms}
    pairs = [(loss, reference_of(loss, "harmonic", "matched")) for loss in spec.losses if loss in ran - {"harmonic"}]
    if "harmonic_root" in ran:
        pairs += [(loss, "harmonic_root") for loss in spec.losses if loss in ran & set(TIED_RIVALS)]
    leads = {f"{LABELS[loss]} minus {LABELS[against]}": minus(loss, against) for loss, against in pairs}
    verdicts = [
        Table(
            f"{VERDICTS_AGAINST} {LABELS[base]}, tasks; {protocol} protocol, {HOW[protocol]}",
            tuple(_verdicts(own, spec.losses, base)),
        )
        for base, (protocol, own) in product(("harmonic", "linear"), by_protocol.items())
    ]
    square = f"{SQUARE_TITLE}, with spherical softmax for the inner product under HarMax: mean over seeds [95 %]"
    scores = [
        {
            "protocol": place.protocol,
            "models": BODIES[place.model],
            "loss": LABELS[loss],
            "task": at.words,
            **{words: at.mean(loss, score) for score, words in SCORES.items()},
        }
        for place, loss in product(places, spec.losses)
        for at in place.each()
        if (at.tasks[0], loss) in at.runs
    ]
    every = [
        row
        for own, measure in product(by_protocol.values(), MEASURES)
        for row in comparisons(own, spec.losses, "harmonic", measure)
    ]
    epochs, *structures = show.run_tables(places, {loss: LABELS[loss] for loss in spec.losses}, "loss")
    return [
        *verdicts,
        show.effect_table(square, matched if set(CORNERS) <= set(spec.losses) else [], SQUARE),
        show.without_one(matched, leads),
        show.without_one(matched, leads, "accuracy"),
        Table(show.SCORES_TITLE, tuple(scores)),
        *structures,
        Table("Every comparison with harmonic, paired over seeds", tuple(every)),
        *_search_tables(results),
        epochs,
    ]


COLUMNS = 7
UNTIED = "\N{DAGGER}"


def figures(results: Results) -> dict[str, Picture]:
    """Draw, of what is there, the effects and the scores of each protocol and the search of each model."""
    drawn, spec = {}, results.spec
    for protocol in spec.protocols:
        places = [place for place in spec.places(results) if place.protocol == protocol]
        losses = [loss for loss in spec.losses if any(loss in place.arms for place in places)]
        if not losses:
            continue
        epochs = ", ".join(f"{BODIES[place.model]} {spec.epochs(place.model)} epochs" for place in places)
        budget = f"{protocol.capitalize()} protocol, {HOW[protocol]}; {len(spec.seeds)} seeds, {epochs}."
        against = {loss: reference_of(loss, "harmonic", protocol) for loss in losses if loss != "harmonic"}
        differences = {
            LABELS[loss] + UNTIED * (base != "harmonic"): minus(loss, base) for loss, base in against.items()
        }
        note = f" {UNTIED}: untied, as is the harmonic loss that it is compared with." * (protocol == "matched")
        for score, words in SCORES.items() if len(losses) > 1 else ():
            title = (
                f"{words.capitalize()} of each loss minus that of harmonic loss: {protocol} protocol, {HOW[protocol]}"
            )
            drawn[f"effects_{score}_{protocol}"] = Picture(
                show.draw_effects(places, differences, score, title),
                f"{words.capitalize()} of each loss minus that of harmonic loss: mean over seeds and 95 % interval, "
                f"gray where it spans 0. To the right of 0 a loss is better than harmonic.{note} {budget}",
            )
        if protocol == "matched" and set(CORNERS) <= set(losses):
            drawn["tuned_effects"] = Picture(
                _draw_square(places[0]),
                "Mean scores with 95 % intervals. A line leads from softmax to HarMax, on an inner product (orange) or "
                "on a distance (blue). Where the blue line rises and the orange one falls, HarMax helps on a distance "
                "alone. Spherical softmax, p ~ (w . x)^2, stands for the inner product under HarMax. " + budget,
            )
        drawn[f"scores_{protocol}"] = Picture(
            _draw_scores(places, losses),
            "Scores in hundredths, means over seeds: 100 is the best, and darker is better. Compare a column with its "
            f"first entry, which is harmonic loss. {budget}",
        )
    for model in spec.models:
        if found := {loss: metrics for (loss, of), metrics in _searches(results).items() if of == model}:
            drawn[f"search_{model}"] = Picture(
                _draw_search(spec, found),
                f"The search, {BODIES[model]}: test accuracy at its end, %, by learning rate and weight decay: mean of "
                f"{len(spec.search_seeds)} held-out seeds and of {len(spec.search_tasks)} tasks. Framed: the setting "
                "that was chosen.",
            )
    return drawn


CORNER_LINES = {"inner product": ("linear", "spherical"), "distance": ("l2", "harmonic")}


def _draw_square(place: Place) -> "Figure":
    scores, tasks = ("structure", "accuracy"), place.each()
    titles = {index: "mean" if len(at.tasks) > 1 else at.words.replace(" ", "\n") for index, at in enumerate(tasks)}
    colors = {"inner product": "#D55E00", "distance": "#0072B2"}
    figure, panels = drawing.facets(
        {score: SCORES[score] for score in scores},
        titles,
        size=(1.5 * len(tasks) + 1.0, 2.3 * len(scores) + 1.1),
        sharex=True,
        sharey="row",
    )
    figure.suptitle(f"Softmax against HarMax, each loss tuned: {BODIES[place.model]}")
    handles = [drawing.line_handle(f"on the {name}", color) for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    for (score, index), axes in panels.items():
        for name, corners in CORNER_LINES.items():
            found = [interval(list(tasks[index].per_seed({loss: 1.0}, score).values())) for loss in corners]
            middle, low, high = np.array(found).T
            bars = np.abs([middle - low, high - middle])
            style: dict[str, Any] = {"marker": "o", "markersize": 5, "capsize": 3}
            axes.errorbar((0, 1), middle, yerr=bars, color=colors[name], **style)
        axes.set(xlim=(-0.35, 1.35))
        axes.set_xticks((0, 1), ("softmax", "HarMax"), fontsize=8)
    return figure


def _draw_scores(places: Sequence[Place], losses: Sequence[str]) -> "Figure":
    tasks = places[0].tasks
    figure, panels = drawing.facets(
        {place.model: BODIES[place.model] for place in places},
        {score: words.replace(" in ", " in\n") for score, words in SCORES.items()},
        size=(len(SCORES) * (0.5 * len(tasks) + 0.3) + 2.4, (0.24 * len(losses) + 1.5) * len(places)),
        sharey=True,
    )
    figure.suptitle(
        f"Mean scores of every loss, in hundredths: {places[0].protocol} protocol, {HOW[places[0].protocol]}"
    )
    by_model = {place.model: place.alone() for place in places}
    for (model, score), axes in panels.items():
        found = [[list(at.per_seed({loss: 1.0}, score).values()) for at in by_model[model]] for loss in losses]
        values_AT = np.array([[np.mean(own) if own else np.nan for own in row] for row in found])
        _draw_map(axes, values_AT, [LABELS[loss] for loss in losses], [TITLES[task].split()[0] for task in tasks])
        axes.tick_params(axis="x", rotation=40)
    return figure


def _draw_search(spec: RivalsSpec, found: Mapping[str, Mapping[str, Any]]) -> "Figure":
    from matplotlib.patches import Rectangle

    columns = min(COLUMNS, len(found))
    size = (1.85 * columns + 0.6, 1.6 * -(-len(found) // columns) + 0.4)
    labels = {loss: LABELS[loss] for loss in found}
    figure, panels, _ = drawing.wrapped(labels, columns, size=size, sharex=True, sharey=True)
    rates, decays = ([f"{one:g}" for one in grid] for grid in (spec.learning_rates, spec.weight_decays))
    for loss, axes in panels.items():
        values = np.array([found[loss][f"search {name}"] for name in spec.grid])
        _draw_map(axes, values.reshape(len(rates), len(decays)), rates, decays)
        rate, decay = (f"{found[loss][name]:g}" for name in ("learning_rate", "weight_decay"))
        corner = (decays.index(decay) - 0.5, rates.index(rate) - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.2, zorder=4))
        axes.set_title(LABELS[loss], fontsize=8)
    figure.suptitle("Which learning rate and weight decay suit each loss")
    figure.supxlabel("weight decay", fontsize=9)
    figure.supylabel("learning rate", fontsize=9)
    return figure


def _draw_map(axes: "Axes", values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.grid(False)
    axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(labelsize=7.5, length=0)
    for place, value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if value > 0.5 else "#222222"
            axes.text(place[1], place[0], f"{round(100 * value)}", ha="center", va="center", fontsize=7, color=color)


def experiment_of(model: str, **quick: Any) -> Experiment[RivalsSpec, RivalCell]:
    """Return the study of one model; `quick` says how many epochs the quick profile trains, by the spec's names."""
    full, add = replace(FULL, models=(model,)), ("modular_addition",)
    few = replace(full, tasks=add, search_tasks=add, learning_rates=(2e-3, 8e-3), search_seeds=(2001,), **quick)
    smoke = replace(few, seeds=(0, 1), losses=("harmonic", "linear", "supcon"), authors_tasks=("lattice",))
    some = replace(few, seeds=anchors.SEEDS[:3], losses=(*smoke.losses, "harmonic_untied", "linear_untied"))
    one: dict[str, Any] = {name: 1 for name in quick}
    return Experiment(
        name=f"rivals_{model}",
        title=f"Harmonic loss against its rivals, each tuned: {BODIES[model]}",
        figure="Other losses, each tuned; the paper has no figure of them",
        claims=tuple(claims_of(model)),
        profiles={
            "smoke": replace(smoke, weight_decays=(0.01,), **one),
            "quick": replace(some, weight_decays=(0.0, 0.3), protocols=("matched",)),
            "full": full,
        },
        work=Work(
            cells,
            tuned.run_cells,
            group=lambda cell: None,  # side by side: a GPU never waits for a compiler or for a last straggler
            pieces=lambda cell: (cell.protocol, cell.model, cell.loss),
            accelerated=True,
        ),
        measure=tuned.measure,
        tables=tables,
        figures=figures,
    )


MLP = experiment_of("mlp", mlp_epochs=48, search_mlp_epochs=10)
TRANSFORMER = experiment_of("transformer", transformer_epochs=8, search_transformer_epochs=3)
