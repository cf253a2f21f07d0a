// Cost: time and memory of head and loss at a size of one's own, scaled from the nearest measured one.
import type { CostRow, ExplorerDocument } from "../document";
import { button, h, menu, scrolling, short } from "../dom";
import { estimate, missed } from "../scaling";

const NAMES: Record<string, string> = {
  cross_entropy: "cross-entropy, eager",
  cross_entropy_compiled: "cross-entropy, compiled",
  liger: "cross-entropy, Liger",
  cut_cross_entropy: "cross-entropy, CCE",
  textbook: "harmonic, textbook formula",
  eager: "harmonic, eager",
  eager_compiled: "harmonic, eager compiled",
  chunked: "harmonic, chunked",
  triton_fast: "harmonic, triton fast",
  triton_balanced: "harmonic, triton balanced",
  triton_lean: "harmonic, triton lean",
  three_products: "three matrix products alone",
};
const SIZES: [words: string, tokens: number, features: number, classes: number][] = [
  ["GPT-2 small", 16384, 768, 50304],
  ["Llama 3 8B", 8192, 4096, 128256],
  ["Gemma 2 2B", 8192, 2304, 256000],
  ["ImageNet, ResNet-50", 256, 2048, 1000],
];
const MOST = 1e8;

export function costs(data: ExplorerDocument): Node {
  const places = [...new Set(data.costs.map((row) => row.place))];
  let place = places[0]!;
  const size = { tokens: 16384, features: 768, classes: 50304 };
  const result = scrolling("Time and memory", true);
  const status = h("p", { role: "status", class: "quiet" });

  const inputs = (["tokens", "features", "classes"] as const).map((key) => {
    const words = { tokens: "Tokens per step", features: "Features D", classes: "Classes V" }[key];
    const input = h("input", { type: "number", min: 1, max: MOST, step: 1, value: size[key], "data-size": key });
    input.addEventListener("input", () => {
      const value = Number(input.value);
      const good = Number.isInteger(value) && value >= 1 && value <= MOST;
      input.setAttribute("aria-invalid", String(!good));
      if (good) size[key] = value;
      status.textContent = good ? "" : `${words} must be a whole number from 1 to 100 million.`;
      if (good) draw();
    });
    return { key, input, node: h("label", { class: "control" }, h("span", {}, words), input) };
  });

  function draw(): void {
    const own = data.costs.filter((row) => row.place === place);
    const found = [...new Set(own.map((row) => row.impl))]
      .map((impl) => ({ impl, ...estimate(own.filter((row) => row.impl === impl), size), miss: missed(own.filter((row) => row.impl === impl)) }))
      .sort((one, other) => one.ms - other.ms);
    const most = { ms: Math.max(...found.map((one) => one.ms)), mib: Math.max(...found.map((one) => one.mib)) };
    const bar = (value: number, of: number, look: string) =>
      h("span", { class: look, style: `width:${Math.max(1, (100 * value) / of)}%` });
    const rows = found.map((one) => {
      const name = NAMES[one.impl] ?? one.impl;
      const look = name.startsWith("harmonic") ? "bar" : name.startsWith("cross") ? "bar other" : "bar neither";
      return h(
        "tr",
        { "data-impl": one.impl },
        h("th", { scope: "row" }, name),
        h("td", { "data-ms": one.ms }, time(one.ms), bar(one.ms, most.ms, look)),
        h("td", { "data-mib": one.mib }, memory(one.mib), bar(one.mib, most.mib, look)),
        h("td", {}, one.exact ? "measured at this size" : `scaled from ${shape(one.from)}${one.far ? ", which is far away: a guess" : ""}`),
        h("td", { class: "number" }, one.exact ? "" : one.miss === null ? "unknown" : `${short(one.miss)} times`),
      );
    });
    const head = ["head and loss", "time per step", "memory per step", "where the numbers come from", "typical miss"];
    result.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words)))), h("tbody", {}, ...rows)));
  }

  const presets = SIZES.map(([words, tokens, features, classes]) =>
    button(words, () => {
      Object.assign(size, { tokens, features, classes });
      for (const { key, input } of inputs) {
        input.value = String(size[key]);
        input.setAttribute("aria-invalid", "false");
      }
      status.textContent = "";
      draw();
    }),
  );
  draw();
  return h(
    "div",
    {},
    h("h2", {}, "What head and loss cost"),
    h(
      "p",
      {},
      "Forward and backward of the head and its loss, without the rest of the model. Memory is the most that a step holds at once " +
        "beyond its inputs, with the gradients of features and weight.",
    ),
    h("div", { class: "controls" }, ...inputs.map((one) => one.node), menu("Measured on", places.map((one) => [one, one]), place, (value) => {
      place = value;
      draw();
    })),
    h("div", { class: "controls" }, ...presets),
    status,
    result,
    h(
      "p",
      { class: "quiet", style: "margin-top:12px" },
      "A number at another size is an estimate. Time is scaled by tokens x D x V. Memory beyond the gradients is scaled by tokens x V " +
        "where an implementation stores all logits, by (tokens + V) x D where it works in pieces, and is kept as measured for Liger and CCE. " +
        "The typical miss is the median factor by which this rule misses the measured times, each from the nearest other one. " +
        "On a GPU plain matrix products in bfloat16 are several times slower where V is no multiple of 8, which the rule does not know.",
    ),
  );
}

function shape(row: CostRow): string {
  return [row.tokens, row.features, row.classes].map((value) => value.toLocaleString("en-US")).join(" x ");
}

function time(ms: number): string {
  return ms >= 1000 ? `${short(ms / 1000)} s` : `${short(ms)} ms`;
}

function memory(mib: number): string {
  return mib >= 1024 ? `${short(mib / 1024)} GiB` : `${short(mib)} MiB`;
}
