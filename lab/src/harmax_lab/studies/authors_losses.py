"""The paper's own comparison with other losses, run as its authors ran it (App. D, Fig. 10 and 11).

    harmax run authors_losses            MLPs, modular addition, 3 seeds, cut short: seconds on two CPU cores
    harmax run authors_losses --full     both tasks, both models, 20 seeds, the paper's epochs; meant for a GPU

The text of the appendix contrasts harmonic loss with contrastive and spherical loss. The caption of Fig. 10 names other
rows: inner product under HarMax, distance under softmax, and the standard loss. Both sets are run here. The authors'
code applies contrastive and spherical loss to the log-probabilities of the harmonic model (`losses/authors.py`). The
published losses of the same two families are run beside them.

All runs follow the authors' protocol, with their learning rate and weight decay; nothing is tuned. The losses on
log-probabilities have the settings of the authors' harmonic arm. The rows of the caption are built as in `ablation`,
the published losses as in the rivals, which also have each of them tuned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, planes
from harmax_lab.algorithmic.measures import last_embedding, middle_seed
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.tables import Table
from harmax_lab.paper.readings import PASSED
from harmax_lab.studies import ablation, tuned_losses
from harmax_lab.studies import compare_arms as compare
from harmax_lab.studies import tables_and_figures as show
from harmax_lab.studies.compare_arms import Place, Rule, StudySpec, minus
from harmax_lab.studies.score_runs import SCORES
from harmax_lab.tasks import find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT = {
    "contrastive_authors": "contrastive, on log-probabilities",
    "spherical_authors": "spherical, on log-probabilities",
}
CAPTION = {
    "dot_harmax": "inner product, HarMax",
    "l2": "distance, softmax",
    "linear": "cross-entropy",
}
PUBLISHED = {
    "contrastive": "contrastive, published",
    "infonce": "InfoNCE, published",
    "spherical": "spherical softmax, published",
    "normface": "cosine softmax (NormFace), published",
}
LOSSES = {"harmonic": "harmonic", **TEXT, **CAPTION, **PUBLISHED}
"""Labels by head, in the order of tables and figures."""
COLORS = {"harmonic": "#0072B2", **dict.fromkeys(TEXT, "#D55E00"), **dict.fromkeys(CAPTION, "#444444")}
OTHERS = "#009E73"
NOTEBOOK_SEEDS = anchors.SEEDS[:4]
NOTEBOOK: dict[tuple[str, str], tuple[float, ...]] = {
    ("mlp", "harmonic"): (0.9999, 0.5940, 0.9999, 0.5911),
    ("mlp", "contrastive_authors"): (0.9222, 0.9434, 0.9228, 0.9238),
    ("mlp", "spherical_authors"): (0.9973, 0.9973, 0.9972, 0.9967),
    ("transformer", "harmonic"): (0.6564, 0.3033, 0.3520, 0.6572),
    ("transformer", "contrastive_authors"): (0.4441, 0.3834, 0.4392, 0.4126),
    ("transformer", "spherical_authors"): (0.3402, 0.6983, 0.8723, 0.2925),
}
"""Share of variance in two components on modular addition that the authors' notebook prints, by model and loss."""


@dataclass(frozen=True, kw_only=True)
class AuthorsLossesSpec(StudySpec):
    """Settings of the comparison; the defaults are the paper's."""

    protocols: tuple[str, ...] = ("authors",)
    authors_tasks: tuple[str, ...] = compare.PAPERS_TASKS
    losses: tuple[str, ...] = tuple(LOSSES)
    transformer_epochs: int = anchors.LONG_EPOCHS


FULL = AuthorsLossesSpec(seeds=anchors.SEEDS)


def cells(spec: AuthorsLossesSpec) -> list[RunCell]:
    """List every model, task, loss and seed."""
    return [
        RunCell(place.protocol, task, place.model, loss, spec.train_fraction, seed)
        for place in spec.places()
        for task, loss, seed in product(place.tasks, spec.losses, spec.seeds)
    ]


def settings_of(spec: AuthorsLossesSpec, cell: RunCell) -> Settings:
    """Return how a cell is trained; the authors' losses are on their harmonic model, tied or not as that is."""
    epochs = spec.epochs(cell.model)
    if cell.head in PUBLISHED:
        return tuned_losses.settings_of(cell.protocol, cell.model, cell.head, epochs=epochs)
    if cell.head in CAPTION:
        return ablation.settings_of(spec, cell)
    return settings(cell.protocol, cell.model, "harmonic", epochs=epochs)


def _judge_no_classifier(place: Place) -> Finding:
    counts = {
        loss: [one["accuracy"] >= PASSED for task in place.alone() for one in task.metrics(loss)] for loss in TEXT
    }
    passed = {LOSSES[loss]: f"{sum(found)} of {len(found)}" for loss, found in counts.items()}
    words = "; ".join(f"{label} {count}" for label, count in passed.items())
    means = "; ".join(f"{LOSSES[loss]} {place.mean(loss, 'accuracy')}" for loss in TEXT)
    return Finding(
        not any(map(any, counts.values())),
        f"Runs that pass the test: {words}. Late test accuracy: {means}.",
        {f"passed_{loss}": sum(found) for loss, found in counts.items()},
    )


def _claims(model: str) -> list[Claim]:
    claim = partial(
        compare.study_claim,
        suffix=model,
        where=f"{BODIES[model]}, authors protocol, untuned",
        full=FULL,
        protocol="authors",
        model=model,
    )

    def best(name: str, others: str, rivals: Mapping[str, str], score: str = "structure", **more: Any) -> Claim:
        rule = compare.none_ahead(dict.fromkeys(rivals, "harmonic"), LOSSES, score)
        what = "recovers more structure" if score == "structure" else f"has more {SCORES[score]}"
        read = ". Reconstruction is read as structure" * (score == "structure")
        said = f"Harmonic loss {what} than {others}, on average over lattice and modular addition{read}"
        return claim(name, said, rule, arms=("harmonic", *rivals), passing=compare.passed, **more)

    applied = "contrastive and spherical loss as the authors applied them"
    # Fig. 11, of transformers, has no sentence of its own.
    sentences = ("Fig. 10/3",) if model == "mlp" else ()
    rows = "inner product under HarMax, distance under softmax and cross-entropy, the rows that the caption names"
    return [
        best("best_of_text", f"{applied}, the losses that the text names", TEXT, sentences=sentences),
        best("best_of_caption", rows, CAPTION, sentences=sentences),
        best("best_of_published", "contrastive and spherical losses as they were published", PUBLISHED),
        best("text_by_variance", applied, TEXT, "variance"),
        claim(
            "spherical_poorer",
            "Spherical loss, as the authors applied it, recovers less structure than harmonic loss, on average over "
            "lattice and modular addition",
            compare.above(minus("harmonic", "spherical_authors"), "Structure, harmonic minus spherical"),
            arms=("harmonic", "spherical_authors"),
            sentences=("D/13",),
            paper="Its reason is an entry of its own.",
            passing=compare.passed,
        ),
        claim(
            "no_classifier",
            "Contrastive and spherical loss, as the authors applied them, train no model to predict",
            Rule(f"Holds where no run with either of them has a late test accuracy of {PASSED}", _judge_no_classifier),
            arms=tuple(TEXT),
            seeds=LEAST_RUNS,
        ),
    ]


def _argument(name: str, sentence: str, said: str, evidence: str) -> Claim:
    reason = f"An argument that the paper tests nowhere. {evidence}"
    return Claim(name, said, sentences=(sentence,), not_run=reason)


ARGUMENTS = (
    _argument(
        "proximity_explains",
        "D/13",
        "Spherical loss aligns less well because it ignores Euclidean proximity.",
        "A simpler reason is possible: as the authors applied it, spherical loss makes the right class the least "
        "probable one (`losses/authors.py` and its test). Spherical losses on the features, as published, are judged "
        "in best_of_published.",
    ),
    _argument(
        "maximal_separation",
        "7/7",
        "Harmonic loss, like contrastive loss, encourages maximal separation between classes.",
        "What comes nearest is the share of an embedding's variance that lies between classes, in representations and "
        "in the neural collapse of classifiers.",
    ),
    _argument(
        "constellations_drift",
        "D/5",
        "Contrastive loss enforces a relative order alone, so all features together can drift or rotate.",
        "What comes nearest is the structure that contrastive losses recover: best_of_text and best_of_published here, "
        "and structure_first of the rivals, where each is tuned.",
    ),
    _argument(
        "anchors_are_stable",
        "D/6",
        "Harmonic loss ties every example to the center of its class, which gives a stable geometry.",
        "What comes nearest is whether the weights lie on the data of their classes, in toy_cases and mnist.",
    ),
    _argument(
        "margins_are_global",
        "D/9",
        "A fixed margin drives related classes as far apart as unrelated ones.",
        "What comes nearest is genealogy under large-margin softmax, CosFace and ArcFace, each tuned, in the table of "
        "every comparison of the rivals.",
    ),
)
CLAIMS = (*(claim for pair in zip(*map(_claims, BODIES), strict=True) for claim in pair), *ARGUMENTS)


def _notebook_rows(results: Results) -> Iterable[Mapping[str, Any]]:
    for (model, loss), theirs in NOTEBOOK.items():
        own = results.where(model=model, head=loss, task="modular_addition", seed=NOTEBOOK_SEEDS)
        if ours := own.metric("variance").by("seed"):
            row: dict[str, Any] = {"models": BODIES[model], "loss": LOSSES[loss]}
            for seed, share in zip(NOTEBOOK_SEEDS, theirs, strict=True):
                row |= {f"authors, seed {seed}": share, f"here, seed {seed}": ours.get(seed)}
            yield row


def tables(results: Results) -> list[Table]:
    """Tabulate scores, the authors' printed shares, epochs, and what a mean over runs hides."""
    places = results.spec.places(results)
    labels = {loss: LOSSES[loss] for loss in results.spec.losses}
    scores = [
        {**at.columns, "loss": label, **{words: at.mean(loss, score) for score, words in SCORES.items()}}
        for at, (loss, label) in product(show.each(places), labels.items())
        if at.metrics(loss)
    ]
    return [
        Table(show.SCORES_TITLE, tuple(scores)),
        Table(
            "Share of variance in two components on modular addition, beside what the authors' notebook prints",
            tuple(_notebook_rows(results)),
        ),
        *show.run_tables(places, labels, "loss"),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the scores, and the embeddings of each model."""
    spec = results.spec
    places = [place for place in spec.places(results) if place.runs]
    drawn = {}
    if places:
        drawn["structure"] = Picture(
            _draw_structure(places, spec.losses),
            "How much of the lattice or the circle the embedding shows: 1 is all of it. A dot is a run. A diamond "
            f"with a bar is the mean of {len(spec.seeds)} seeds with its 95 % interval. Blue, dotted: harmonic loss. "
            "Orange: the losses that the appendix names, as its authors applied them. Gray: the rows that the caption "
            "of its figure names. Green: published losses. " + _budget(places, spec),
        )
    for place in places:
        drawn[f"embeddings_{place.model}"] = Picture(
            _draw_embeddings(place, [loss for loss in spec.losses if loss in place.arms]),
            f"Embeddings of {BODIES[place.model]} in the plane of their two principal components, one loss per column: "
            f"of {len(spec.seeds)} seeds the one with the median structure, which stands below. Lines join neighbors "
            "of the lattice, and neighbors on the circle. Look for a regular grid and a round circle. "
            + _budget([place], spec),
        )
    return drawn


def _budget(places: Sequence[Place], spec: AuthorsLossesSpec) -> str:
    words = ", ".join(f"{BODIES[place.model]} {spec.epochs(place.model)} epochs" for place in places)
    return f"Authors' protocol, nothing tuned; {words}."


def _draw_structure(places: Sequence[Place], losses: Sequence[str]) -> "Figure":
    tasks = places[0].tasks
    figure, panels = drawing.facets(
        {place.model: BODIES[place.model] for place in places},
        {task: TITLES[task] for task in tasks},
        size=(3.3 * len(tasks) + 2.6, (0.33 * len(losses) + 0.9) * len(places) + 0.5),
        xlabel="structure",
        sharex=True,
        sharey=True,
    )
    figure.suptitle("Structure of the embedding, by loss", fontsize=11)
    for place in places:
        for at in place.alone():
            axes = panels[place.model, at.tasks[0]]
            for line, loss in enumerate(losses):
                if values := list(at.per_seed({loss: 1.0}, "structure").values()):
                    color, mean = COLORS.get(loss, OTHERS), interval(values)
                    heights = drawing.beside(line, len(values), 0.25)
                    axes.plot(values, heights, ".", color=color, alpha=0.35, markersize=4, zorder=2)
                    drawing.draw_interval(axes, mean, line, color, markersize=6, markeredgecolor="white", zorder=3)
                    if loss == "harmonic":
                        axes.axvline(mean.estimate, color=color, linewidth=0.9, linestyle=":", zorder=1)
            axes.set(ylim=(len(losses) - 0.5, -0.5), xlim=(-0.03, 1.03))
            axes.set_yticks(range(len(losses)), [LOSSES[loss] for loss in losses])
    return figure


def _draw_embeddings(place: Place, losses: Sequence[str]) -> "Figure":
    wrapped = {loss: LOSSES[loss].replace(", ", ",\n").replace(" (", "\n(") for loss in losses}
    size = (1.45 * len(losses) + 0.5, 1.75 * len(place.tasks) + 0.9)
    figure, panels = drawing.facets({task: TITLES[task] for task in place.tasks}, wrapped, size=size, font=7.5)
    figure.suptitle(f"What {BODIES[place.model]} draw under each loss, median run", fontsize=11)
    for (task, loss), axes in panels.items():
        found = place.runs.get((task, loss), {})
        scores = {
            seed: None if last_embedding(one) is None else one.metrics["structure"] for seed, one in found.items()
        }
        middle = found[middle_seed(scores)] if found else None
        structure = find_task(task, protocol=place.protocol).structure
        planes.draw_run(axes, structure, middle, size=3.2)
        if middle is not None:
            axes.set_xlabel(f"{middle.metrics['structure']:.2f}", fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="authors_losses",
    title="The paper's comparison with other losses, as its authors applied them",
    figure="Fig. 10, 11; App. D",
    claims=CLAIMS,
    profiles={
        "smoke": replace(
            FULL,
            seeds=(0, 1),
            models=("mlp",),
            authors_tasks=("modular_addition",),
            losses=("harmonic", *TEXT, "linear"),
            mlp_epochs=2,
        ),
        "quick": replace(
            FULL, seeds=anchors.SEEDS[:3], models=("mlp",), authors_tasks=("modular_addition",), mlp_epochs=48
        ),
        "full": FULL,
    },
    work=compare.work(cells, settings_of, pieces=lambda cell: (cell.model, cell.head)),
    tables=tables,
    figures=figures,
)
