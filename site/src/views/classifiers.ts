// Why this class: centers, what lies near them, and the reasons for decisions.
import { chart, path } from "../chart";
import type { Example, ExplorerDocument, ShownClassifier } from "../document";
import { h, menu, percent, s, short, slider } from "../dom";
import { unpack } from "../packed";
import { reliability, risk, SCORES, scoreOf, type Score } from "../trust";

const MOST_BARS = 10;
const NO_CLASS = "";

export function classifiers(data: ExplorerDocument): Node {
  const place = h("div");
  const open = (at: string) => place.replaceChildren(one(data.classifiers[Number(at)]!));
  open("0");
  const names = data.classifiers.map((shown, at) => [String(at), shown.name] as [string, string]);
  return h("div", {}, names.length > 1 ? h("div", { class: "controls" }, menu("Classifier", names, "0", open)) : null, place);
}

function one(shown: ShownClassifier): Node {
  const arrays = {
    label: unpack(shown.label),
    winner: unpack(shown.winner),
    runnerUp: unpack(shown.runner_up),
    far: unpack(shown.winner_distance),
    second: unpack(shown.runner_up_distance),
    confidence: unpack(shown.confidence),
  };
  const count = arrays.label.length;
  const right = Array.from(arrays.label, (label, at) => label === arrays.winner[at]);
  let score: Score = "ratio";
  let coverage = 1;
  let onlyClass = NO_CLASS;
  let onlyWrong = false;
  let answered: boolean[] = [];

  const reason = h("div", { class: "card", "aria-live": "polite" });
  const list = h("ul", { class: "examples page-list", "aria-label": "Test examples" });
  const centers = h("ul", { class: "examples page-list", "aria-label": "Classes" });
  const trust = h("div", { class: "pair" });
  const said = h("p", { role: "status" });

  const abstain = slider("Share that is answered", { min: 1, max: 100, step: 1, value: 100 }, (value) => {
    coverage = value / 100;
    drawTrust();
  });

  function tile(example: Example, words: string[], pressed: (() => void) | null, extra = ""): HTMLLIElement {
    const inside = [look(example), ...words.map((text) => h("span", {}, text))];
    const kind = `example ${example.picture ? "" : "words"} ${extra}`;
    return h("li", {}, pressed ? h("button", { type: "button", class: kind, click: pressed }, ...inside) : h("div", { class: kind }, ...inside));
  }

  function near(label: number, words: string): Node[] {
    const tiles = shown.nearest[label]!.map((one) => tile(one.example, [shown.classes[one.label]!, short(one.distance)], null, one.label === label ? "" : "wrong"));
    return [h("h3", {}, words), h("ul", { class: "examples" }, ...tiles)];
  }

  /** On a narrow screen the reasons are below the lists, out of sight. */
  function lookAtReason(): void {
    if (matchMedia("(max-width: 720px)").matches) reason.scrollIntoView();
  }

  function showClass(label: number): void {
    const own = Array.from(arrays.label.keys()).filter((at) => arrays.label[at] === label);
    const hits = own.filter((at) => right[at]).length;
    const center = shown.centers[label];
    const lost = new Map<number, number>();
    for (const at of own) if (!right[at]) lost.set(arrays.winner[at]!, (lost.get(arrays.winner[at]!) ?? 0) + 1);
    const often = [...lost].sort((one, other) => other[1] - one[1]).slice(0, 3);
    reason.replaceChildren(
      h("h3", {}, `Class ${shown.classes[label]}`),
      h(
        "dl",
        { class: "facts" },
        h("dt", {}, "right"),
        h("dd", {}, own.length ? `${hits} of ${own.length} test examples` : "no test example of this class"),
        h("dt", {}, "taken for"),
        h("dd", {}, often.map(([other, times]) => `${shown.classes[other]} (${times})`).join(", ") || "no other class"),
      ),
      ...(center ? [h("h3", {}, "Its center"), h("ul", { class: "examples" }, tile(center, [], null))] : []),
      ...near(label, "Training examples nearest to its center"),
    );
  }

  function showExample(at: number): void {
    const example = shown.examples[at]!;
    const here = example.place;
    const [winner, second] = [arrays.winner[here]!, arrays.runnerUp[here]!];
    const distances = unpack(example.distances);
    const order = [...distances.keys()].sort((one, other) => distances[one]! - distances[other]!).slice(0, MOST_BARS);
    const farthest = distances[order[order.length - 1]!]!;
    const row = (label: number) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, shown.classes[label]!),
        h("td", { class: "number" }, short(distances[label]!)),
        h("td", { style: "width:55%" }, h("span", { class: label === winner ? "bar" : "bar neither", style: `width:${(100 * distances[label]!) / farthest}%` })),
      );
    const facts: [string, string][] = [
      ["true class", shown.classes[arrays.label[here]!]!],
      ["answer", `${shown.classes[winner]}, ${right[here] ? "right" : "wrong"}, with probability ${percent(arrays.confidence[here]!)}`],
      ["nearest center", `${shown.classes[winner]} at ${short(arrays.far[here]!)}`],
      ["second nearest", `${shown.classes[second]} at ${short(arrays.second[here]!)}`],
      ["ratio of the two", short(arrays.second[here]! > 0 ? arrays.far[here]! / arrays.second[here]! : 1)],
    ];
    if (!answered[here]) facts.push(["abstained", "the chosen share leaves this example without an answer"]);
    reason.replaceChildren(
      h("h3", {}, example.example.title),
      h("ul", { class: "examples" }, tile(example.example, [], null)),
      h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      ...near(winner, `Training examples nearest to the center of ${shown.classes[winner]}`),
      ...near(second, `Training examples nearest to the center of ${shown.classes[second]}`),
      h("h3", {}, `Distances to ${order.length < distances.length ? `the ${order.length} nearest` : "all"} centers`),
      h("table", {}, h("tbody", {}, ...order.map(row))),
    );
  }

  function drawLists(): void {
    centers.replaceChildren(
      ...shown.classes.map((name, label) => tile(shown.centers[label] ?? shown.nearest[label]![0]!.example, [name], () => {
          showClass(label);
          lookAtReason();
        })),
    );
    const chosen = [...shown.examples.keys()].filter((at) => {
      const here = shown.examples[at]!.place;
      return (!onlyWrong || !right[here]) && (onlyClass === NO_CLASS || arrays.label[here] === Number(onlyClass));
    });
    list.replaceChildren(
      ...chosen.map((at) => {
        const { example, place } = shown.examples[at]!;
        const words = right[place] ? [shown.classes[arrays.winner[place]!]!] : [`${shown.classes[arrays.label[place]!]}, taken for ${shown.classes[arrays.winner[place]!]}`];
        return tile(example, words, () => {
          showExample(at);
          lookAtReason();
        }, `${right[place] ? "" : "wrong"} ${answered[place] ? "" : "left-out"}`);
      }),
    );
    if (!chosen.length) list.append(h("li", { class: "quiet" }, "No example of the page is like this."));
  }

  function drawTrust(): void {
    const found = risk(scoreOf(score, arrays), right);
    const kept = Math.max(1, Math.round(coverage * count));
    answered = Array.from({ length: count }, () => false);
    for (const at of found.order.slice(0, kept)) answered[at] = true;
    abstain.show(`${Math.round(100 * coverage)} %`);
    said.textContent = `${kept.toLocaleString("en-US")} of ${count.toLocaleString("en-US")} test examples are answered; ${percent(found.accuracy[kept - 1]!)} of the answers are right.`;
    const size = { width: 430, height: 260 };
    const low = Math.min(0.9, ...found.accuracy.slice(Math.floor(count / 20)));
    const curve = chart("Accuracy of the answers against the share that is answered", { from: 0, to: 1, words: "answered, %", percent: true }, { from: Math.floor(low * 10) / 10, to: 1, words: "accuracy, %", percent: true }, size);
    const step = Math.max(1, Math.floor(count / 300));
    const points = found.accuracy.map((value, at) => [(at + 1) / count, value] as [number, number]).filter((_, at) => at % step === step - 1 || at === count - 1);
    curve.marks.append(
      s("path", { class: "curve", d: path(curve, points), style: "stroke:var(--harmonic)" }),
      s("circle", { r: 6, cx: curve.x(kept / count), cy: curve.y(found.accuracy[kept - 1]!), style: "fill:var(--harmonic)" }),
    );
    const bins = reliability(arrays.confidence, right, answered);
    const plot = chart("Accuracy against confidence", { from: 0, to: 1, words: "confidence, %", percent: true }, { from: 0, to: 1, words: "accuracy, %", percent: true }, size);
    plot.marks.append(s("line", { x1: plot.x(0), y1: plot.y(0), x2: plot.x(1), y2: plot.y(1), class: "grid", "stroke-dasharray": "4 4", style: "stroke:var(--soft)" }));
    const largest = Math.max(...bins.map((bin) => bin.count));
    for (const bin of bins) {
      const words = `${bin.count} examples: confidence ${percent(bin.confidence)}, accuracy ${percent(bin.accuracy)}`;
      plot.marks.append(
        s("line", { x1: plot.x(bin.confidence), x2: plot.x(bin.confidence), y1: plot.y(bin.confidence), y2: plot.y(bin.accuracy), style: "stroke:var(--soft);stroke-width:1.5" }),
        s("circle", { r: 3 + 6 * Math.sqrt(bin.count / largest), cx: plot.x(bin.confidence), cy: plot.y(bin.accuracy), style: "fill:var(--harmonic)" }, s("title", {}, words)),
      );
    }
    const total = bins.reduce((sum, bin) => sum + bin.count, 0);
    const gap = bins.reduce((sum, bin) => sum + bin.count * Math.abs(bin.accuracy - bin.confidence), 0) / Math.max(1, total);
    trust.replaceChildren(
      h("div", { class: "card" }, h("h3", {}, "Abstaining"), curve.node),
      h("div", { class: "card" }, h("h3", {}, "Reliability of the answers", h("span", {}, `: mean gap ${percent(gap)}`)), plot.node),
    );
    drawLists();
  }

  drawTrust();
  if (shown.examples.length) showExample(0);
  else showClass(0);
  const classes: [string, string][] = [[NO_CLASS, "all"], ...shown.classes.map((name, label) => [String(label), name] as [string, string])];
  const hits = right.filter(Boolean).length;
  return h(
    "div",
    {},
    h("h2", {}, shown.name),
    h("p", {}, `${percent(hits / count)} of ${count.toLocaleString("en-US")} test examples are right. Exponent ${short(shown.exponent)}, ${shown.train_count.toLocaleString("en-US")} training examples. The answer is always the class of the nearest center.`),
    h(
      "div",
      { class: "controls" },
      abstain.node,
      menu("Abstain by", Object.entries(SCORES), score, (value) => {
        score = value as Score;
        drawTrust();
      }),
    ),
    said,
    trust,
    h(
      "div",
      { class: "pair" },
      h(
        "div",
        {},
        h("h3", {}, "Classes", h("span", { class: "quiet" }, shown.centers.length ? ": each one's center" : ": the training example nearest to each center")),
        centers,
        h("h3", {}, "Test examples", h("span", { class: "quiet" }, ": some right ones from sure to unsure, and the surest mistakes")),
        h(
          "div",
          { class: "controls" },
          menu("Class", classes, NO_CLASS, (value) => {
            onlyClass = value;
            drawLists();
          }),
          menu("Show", [["", "all"], ["wrong", "mistakes"]], "", (value) => {
            onlyWrong = value === "wrong";
            drawLists();
          }),
        ),
        list,
      ),
      reason,
    ),
  );
}

function look(example: Example): Node {
  if (example.picture) return h("img", { src: example.picture, alt: example.title });
  if (example.text) return h("span", {}, example.text);
  const rows = Object.entries(example.row).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, value)));
  return h("table", {}, h("tbody", {}, ...rows));
}
