// Verdicts: what became of each of the paper's claims.
import type { ExplorerDocument, JudgedClaim, JudgedExperiment } from "../document";
import { button, checkbox, h, menu, scrolling } from "../dom";

const WORDS = ["reproduced", "not reproduced", "not decided", "not run", "holds", "does not hold"];
const LOOK: Record<string, string> = { reproduced: "good", holds: "good", "not reproduced": "bad", "does not hold": "bad" };
const ANY = "";

function tag(verdict: string): HTMLElement {
  return h("span", { class: `tag ${LOOK[verdict] ?? "open"}` }, verdict);
}

export function verdicts(data: ExplorerDocument): Node {
  const { claims, experiments } = data.verdicts!;
  const byName = new Map(experiments.map((one) => [one.name, one]));
  const chosen = { verdict: ANY, experiment: ANY, place: ANY, controls: false, text: "" };
  const list = h("ul", { class: "claims" });
  const tally = h("p", { role: "status" });
  const controls = h("div", { class: "controls" });
  const matrix = scrolling("Verdicts by experiment");

  const main = (claim: JudgedClaim) => claim.results[0]?.verdict ?? "not decided";

  function matches(claim: JudgedClaim): boolean {
    const words = `${claim.statement} ${claim.rule} ${claim.paper} ${claim.id} ${claim.experiment}`.toLowerCase();
    return (
      (chosen.controls || !claim.control) &&
      (chosen.verdict === ANY || main(claim) === chosen.verdict) &&
      (chosen.experiment === ANY || claim.experiment === chosen.experiment) &&
      (chosen.place === ANY || claim.places.includes(chosen.place)) &&
      words.includes(chosen.text.toLowerCase())
    );
  }

  function item(claim: JudgedClaim): HTMLLIElement {
    const experiment = byName.get(claim.experiment)!;
    const details = h(
      "details",
      {},
      h(
        "summary",
        {},
        tag(main(claim)),
        h("span", {}, claim.statement, h("small", {}, `${experiment.title}, ${experiment.figure}${claim.control ? ", a control of ours" : ""}`)),
      ),
    );
    // The inside is made when it is opened, so that hundreds of claims stay a light page.
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(inside(claim, experiment));
    });
    return h("li", { "data-verdict": main(claim), "data-claim": `${claim.experiment}/${claim.id}` }, details);
  }

  function draw(): void {
    const found = claims.filter(matches);
    list.replaceChildren(...found.map(item));
    const counts = WORDS.map((verdict) => [verdict, found.filter((claim) => main(claim) === verdict).length] as const);
    const words = counts.filter(([, count]) => count).map(([verdict, count]) => `${count} ${verdict}`);
    tally.textContent = `${found.length} ${found.length === 1 ? "claim" : "claims"}${words.length ? `: ${words.join(", ")}` : ""}.`;
    drawMatrix();
    drawControls();
  }

  function set(change: Partial<typeof chosen>): void {
    Object.assign(chosen, change);
    draw();
  }

  function drawMatrix(): void {
    const shown = claims.filter((claim) => chosen.controls || !claim.control);
    const used = WORDS.filter((verdict) => shown.some((claim) => main(claim) === verdict));
    const row = (experiment: JudgedExperiment) => {
      const own = shown.filter((claim) => claim.experiment === experiment.name);
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, experiment.title),
        h("td", {}, experiment.figure),
        ...used.map((verdict) => {
          const count = own.filter((claim) => main(claim) === verdict).length;
          if (!count) return h("td", { class: "number" });
          const on = chosen.experiment === experiment.name && chosen.verdict === verdict;
          const press = () => set(on ? { experiment: ANY, verdict: ANY } : { experiment: experiment.name, verdict });
          const label = `${experiment.title}: ${count} ${verdict}`;
          return h("td", { class: "number" }, button(String(count), press, { class: "count", "aria-pressed": on, "aria-label": label }));
        }),
      );
    };
    const rows = experiments.filter((one) => shown.some((claim) => claim.experiment === one.name)).map(row);
    const head = ["experiment", "in the paper", ...used].map((words, at) => h("th", { scope: "col", class: at > 1 ? "number" : "" }, words));
    matrix.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)));
  }

  const search = h("input", {
    type: "search",
    placeholder: "for example grokking",
    input: () => {
      chosen.text = search.value;
      draw();
    },
  });
  const places = [...new Set(claims.flatMap((claim) => claim.places))];

  function drawControls(): void {
    const title = (name: string) => byName.get(name)!.title;
    const parts = [
      menu("Verdict", [[ANY, "all"], ...WORDS.map((one) => [one, one] as [string, string])], chosen.verdict, (verdict) => set({ verdict })),
      menu("Experiment", [[ANY, "all"], ...[...byName.keys()].map((one) => [one, title(one)] as [string, string])], chosen.experiment, (experiment) => set({ experiment })),
      menu("Place in the paper", [[ANY, "all"], ...places.map((one) => [one, one] as [string, string])], chosen.place, (place) => set({ place })),
      checkbox("Also our own controls", chosen.controls, (on) => set({ controls: on })),
    ];
    // The place in the controls that has the focus keeps it.
    const nodes = [...controls.querySelectorAll<HTMLElement>("select, input[type=checkbox]")];
    const at = nodes.indexOf(document.activeElement as HTMLElement);
    controls.replaceChildren(...parts);
    if (at >= 0) controls.querySelectorAll<HTMLElement>("select, input[type=checkbox]")[at]?.focus();
  }

  draw();
  return h(
    "div",
    {},
    h("h2", {}, "What became of the paper's claims"),
    h("p", {}, "Each number opens its claims. A claim shows how it was judged, what the runs say, its figures and its runs."),
    h("label", { class: "control", style: "max-width:320px;margin-bottom:10px" }, h("span", {}, "Search in claims"), search),
    controls,
    h("details", { class: "notes", open: !matchMedia("(max-width: 720px)").matches }, h("summary", {}, "By experiment"), matrix),
    tally,
    list,
  );
}

function inside(claim: JudgedClaim, experiment: JudgedExperiment): HTMLElement {
  const facts: [string, Node | string][] = [
    ["judged by", claim.rule || claim.statement],
    ["the paper", claim.paper],
  ];
  for (const result of claim.results) {
    const runs = result.address ? h("a", { href: result.address }, "the runs") : null;
    facts.push([
      result.origin,
      h("span", {}, tag(result.verdict), ` ${result.sentence} `, h("span", { class: "quiet" }, result.profile ? `(${result.profile} profile) ` : ""), runs),
    ]);
  }
  facts.push(["run it again", h("code", {}, experiment.command)]);
  if (experiment.address) facts.push(["published", h("a", { href: experiment.address }, "page with tables and figures")]);
  return h(
    "div",
    { class: "more" },
    h("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ...experiment.figures.map((figure) =>
      h(
        "figure",
        {},
        figure.picture ? h("img", { src: figure.picture, alt: `${experiment.title}: ${figure.name.replaceAll("_", " ")}`, loading: "lazy" }) : null,
        h("figcaption", {}, figure.address ? h("a", { href: figure.address }, figure.name.replaceAll("_", " ")) : figure.name),
      ),
    ),
  );
}
