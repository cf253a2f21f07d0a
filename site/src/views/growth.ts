// Watch it grow: the tokens of an embedding over training, standard beside harmonic.
import { chart, path } from "../chart";
import type { ExplorerDocument, GrownRun } from "../document";
import { button, checkbox, h, menu, percent, s, slider } from "../dom";
import { unpack } from "../packed";
import { HEADS } from "../palette";
import { Plane } from "../plane";

const ORDER = ["linear", "harmonic"];
const SNAPSHOTS_A_SECOND = 8;
const [PASSING, PASSING_EPOCHS] = [0.9, 20]; // as `harmax watch` and the verdicts count
const AXES: [string, string][] = [["0,1", "1 and 2"], ["0,2", "1 and 3"], ["1,2", "2 and 3"]];
const MODELS: Record<string, string> = { mlp: "MLP", transformer: "transformer" };
const PICKERS = ["task", "model", "protocol", "seed"] as const;
type Picker = (typeof PICKERS)[number];

export function growth(data: ExplorerDocument): Node {
  const runs = data.growth;
  const chosen = Object.fromEntries(PICKERS.map((key) => [key, String(best(runs)[key])])) as Record<Picker, string>;
  let axes = "0,1";
  let names = true;
  let time = 0; // a snapshot, or a place between two
  let playing = false;
  let planes: Plane[] = [];
  let curves: { node: Node; show: (epoch: number) => void } | null = null;

  const pickers = h("div", { class: "controls" });
  const pair = h("div", { class: "pair" });
  const below = h("div", { class: "card" });
  const play = button("Play", () => (playing ? stop() : start()), { style: "min-width:5.5em" });
  const clock = slider("Time", { min: 0, max: 1, step: 1, value: 0 }, (value) => {
    stop();
    time = value;
    draw();
  });

  const there = () => runs.filter((run) => PICKERS.every((key) => String(run[key]) === chosen[key]));

  function choose(): void {
    // A pick that does not go with the others moves them to the nearest run that is there.
    while (!there().length) {
      const fits = (count: number) => runs.filter((run) => PICKERS.slice(0, count).every((key) => String(run[key]) === chosen[key]));
      const depth = [4, 3, 2, 1, 0].find((count) => fits(count).length)!;
      const other = fits(depth)[0]!;
      for (const key of PICKERS) chosen[key] = String(other[key]);
    }
    stop();
    build();
  }

  function build(): void {
    const options = (key: Picker): [string, string][] => {
      const before = PICKERS.slice(0, PICKERS.indexOf(key));
      const fit = runs.filter((run) => before.every((one) => String(run[one]) === chosen[one]));
      const words = (run: GrownRun) => (key === "task" ? run.task_title : key === "model" ? (MODELS[run.model] ?? run.model) : String(run[key]));
      return [...new Map(fit.map((run) => [String(run[key]), words(run)]))];
    };
    const focused = [...pickers.querySelectorAll("select")].indexOf(document.activeElement as HTMLSelectElement);
    const title: Record<Picker, string> = { task: "Task", model: "Model", protocol: "Protocol", seed: "Seed" };
    pickers.replaceChildren(
      ...PICKERS.map((key) =>
        menu(title[key], options(key), chosen[key], (value) => {
          chosen[key] = value;
          choose();
        }),
      ),
      menu("Principal components", AXES, axes, (value) => {
        axes = value;
        build();
      }),
      checkbox("Labels", names, (on) => {
        names = on;
        for (const plane of planes) plane.name(names);
      }),
    );
    if (focused >= 0) pickers.querySelectorAll("select")[focused]?.focus();

    const shown = ORDER.map((head) => there().find((run) => run.head === head) ?? null);
    planes = [];
    pair.replaceChildren(...shown.map((run, at) => panel(run, ORDER[at]!)));
    curves = drawCurves(shown.filter((run) => run !== null), (epoch) => {
      stop();
      time = nearest(longest(), epoch);
      draw();
    });
    below.replaceChildren(curves.node);
    clock.input.max = String(Math.max(1, longest().length - 1));
    time = Math.max(0, longest().length - 1);
    draw();
  }

  function panel(run: GrownRun | null, head: string): HTMLElement {
    const look = HEADS[head] ?? { words: head, color: "" };
    const card = (...inside: Node[]) =>
      h("div", { class: `card ${look.words}` }, h("h3", {}, h("b", {}, look.words), h("span", { class: "score" })), ...inside);
    if (!run) return card(h("p", { class: "empty" }, "This training is not finished."));
    if (run.note) return card(h("p", { class: "empty" }, run.note));
    const [across, up] = axes.split(",").map(Number) as [number, number];
    const plane = new Plane(run, across, up, `Tokens of the ${look.words} ${MODELS[run.model] ?? run.model} in the plane of two components`);
    plane.name(names);
    planes.push(plane);
    const share = (run.shares[across] ?? 0) + (run.shares[up] ?? 0);
    return card(plane.node, h("p", { class: "quiet" }, `At the end these two components hold ${percent(share)} of the variance.`));
  }

  const longest = () => planes.map((plane) => plane.run.epochs).sort((one, other) => other.length - one.length)[0] ?? [0];

  function draw(): void {
    const epochs = longest();
    const epoch = epochs[Math.round(time)] ?? 0;
    for (const plane of planes) plane.move(time);
    clock.input.value = String(Math.round(time));
    clock.show(`after ${epoch.toLocaleString("en-US")} ${epoch === 1 ? "epoch" : "epochs"}`);
    curves?.show(epoch);
    for (const plane of planes) {
      const scores = accuracies(plane.run, epoch);
      const words = scores ? `: training ${percent(scores[0])}, test ${percent(scores[1])}` : ": before training";
      plane.node.closest(".card")!.querySelector(".score")!.textContent = words;
    }
  }

  let last = 0;
  function frame(now: number): void {
    if (!playing) return;
    const end = longest().length - 1;
    // A frame's time is that of its beginning, which may lie before the click on a busy machine.
    time = Math.min(end, time + (Math.max(0, now - last) / 1000) * SNAPSHOTS_A_SECOND);
    last = now;
    draw();
    if (time >= end) stop();
    else requestAnimationFrame(frame);
  }

  function start(): void {
    if (time >= longest().length - 1) time = 0;
    playing = true;
    play.textContent = "Pause";
    last = performance.now();
    requestAnimationFrame(frame);
  }

  function stop(): void {
    playing = false;
    play.textContent = "Play";
  }

  addEventListener("viewchange", stop);
  build();
  return h(
    "div",
    {},
    h("h2", {}, "Tokens over training, standard beside harmonic"),
    h(
      "p",
      {},
      "Each dot is a token of the task. Its place is where the model's embedding puts it, along principal components of the last " +
        "snapshot. Lines join tokens that are neighbors in the structure that the task has. The page opens with the task that the " +
        "harmonic MLPs learn best, at the seed whose test accuracy passes 90 % at the median time.",
    ),
    pickers,
    h("div", { class: "time" }, play, clock.node),
    pair,
    below,
  );
}

/**
 * The run to open with: of the tasks that MLPs learn, the one where the harmonic runs end best, and of its seeds the
 * one that passes at the median time, the earlier one of two.
 */
function best(runs: GrownRun[]): GrownRun {
  const end = (run: GrownRun) => (run.note ? -1 : (unpack(run.test_accuracy).at(-1) ?? -1));
  const groups = new Map<string, GrownRun[]>();
  for (const run of runs.filter((one) => one.head === "harmonic")) {
    const key = [run.task, run.model, run.protocol].join(" ");
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  const middles = [...groups.values()].map((group) => {
    const when = new Map(group.map((run) => [run, passes(run)]));
    return group.sort((one, other) => when.get(one)! - when.get(other)!)[Math.floor((group.length - 1) / 2)]!;
  });
  const score = (run: GrownRun) => 2 * Number(run.model === "mlp") + end(run) + 0.01 * Number(run.task === "modular_addition");
  return middles.reduce((one, other) => (score(other) > score(one) ? other : one), middles[0] ?? runs[0]!);
}

/** The first stored epoch from which the test accuracy stays above 0.9 for 20 epochs; a large number if there is none. */
function passes(run: GrownRun): number {
  const epochs = [...unpack(run.curve_epochs)];
  const scores = unpack(run.test_accuracy);
  const stays = (from: number) => epochs.every((epoch, at) => epoch < from || epoch >= from + PASSING_EPOCHS || scores[at]! > PASSING);
  const found = run.note ? undefined : epochs.find((epoch) => epoch + PASSING_EPOCHS <= epochs.at(-1)! + 1 && stays(epoch));
  return found ?? Number.MAX_VALUE;
}

function nearest(epochs: number[], epoch: number): number {
  const far = (value: number) => Math.abs(Math.log((value + 0.5) / (epoch + 0.5)));
  return epochs.reduce((one, value, at) => (far(value) < far(epochs[one]!) ? at : one), 0);
}

/** Accuracies after an epoch; null before training. */
function accuracies(run: GrownRun, epoch: number): [number, number] | null {
  if (epoch < 1) return null;
  const at = nearest([...unpack(run.curve_epochs)], epoch);
  return [unpack(run.train_accuracy)[at]!, unpack(run.test_accuracy)[at]!];
}

function drawCurves(runs: GrownRun[], pick: (epoch: number) => void): { node: Node; show: (epoch: number) => void } {
  const most = Math.max(2, ...runs.map((run) => Math.max(...unpack(run.curve_epochs))));
  const size = { width: matchMedia("(max-width: 720px)").matches ? 400 : 900, height: 230 };
  const across = { from: 1, to: most, words: "epoch", log: true };
  const up = { from: 0, to: 1, words: "accuracy, %", percent: true };
  const drawn = chart("Accuracy on training and test data over epochs", across, up, size);
  for (const run of runs) {
    const epochs = unpack(run.curve_epochs);
    for (const [values, dashes] of [[run.train_accuracy, "5 4"], [run.test_accuracy, ""]] as const) {
      const points = [...unpack(values)].map((value, at) => [epochs[at]!, value] as [number, number]);
      const color = (HEADS[run.head] ?? HEADS.linear!).color;
      drawn.marks.append(s("path", { class: "curve", d: path(drawn, points), style: `stroke:${color}`, "stroke-dasharray": dashes || "none" }));
    }
  }
  const now = s("line", { class: "now", y1: drawn.y(0), y2: drawn.y(1) });
  drawn.marks.append(now);
  drawn.node.addEventListener("click", (event) => {
    const box = drawn.node.getBoundingClientRect();
    pick(Math.max(1, drawn.x.invert(((event.clientX - box.left) / box.width) * size.width)));
  });
  const entry = (words: string, color: string, dashed: boolean) =>
    h("li", {}, h("i", { class: dashed ? "dashed" : "", style: `color:${color}` }), words);
  const heads = [...new Set(runs.map((run) => run.head))].map((head) => HEADS[head] ?? HEADS.linear!);
  const legend = heads.flatMap((head) => [entry(`${head.words}, test`, head.color, false), entry(`${head.words}, training`, head.color, true)]);
  const node = h("div", {}, h("h3", {}, "Accuracy", h("span", {}, ": a click goes to that epoch")), h("ul", { class: "legend" }, ...legend), drawn.node);
  return {
    node,
    show: (epoch) => {
      const x = drawn.x(Math.max(1, epoch));
      now.setAttribute("x1", String(x));
      now.setAttribute("x2", String(x));
    },
  };
}
