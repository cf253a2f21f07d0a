// HarMax by hand: centers and points in a plane, moved by pointer or keyboard, under both heads at once.
import { button, checkbox, h, percent, s, scrolling, short, slider } from "../dom";
import { harmax, linearSoftmax, squaredDistances, type Point } from "../harmax";
import { CLASS_COLORS, classColor, rgb } from "../palette";

interface Labelled extends Point {
  label: number;
}

interface Setting {
  words: string;
  centers: Point[];
  points: Labelled[];
  exponent: number;
}

interface Field {
  head: "harmonic" | "standard";
  canvas: HTMLCanvasElement;
  svg: SVGSVGElement;
}

const REACH = 4; // the plane goes from -4 to 4
const PIXELS = 96; // of the background, on each side
const MOST = CLASS_COLORS.length;
const LETTERS = "ABCDEFG";
const SETTINGS: Setting[] = [
  {
    words: "Three classes",
    exponent: 4,
    centers: [{ x: -1.6, y: -1 }, { x: 1.7, y: -0.9 }, { x: 0, y: 1.8 }],
    points: [
      { x: -1.2, y: -0.6, label: 0 },
      { x: 1.3, y: -1.3, label: 1 },
      { x: 0.4, y: 1.3, label: 2 },
    ],
  },
  {
    words: "Two centers in one direction",
    exponent: 4,
    centers: [{ x: 0.9, y: 0.6 }, { x: 2.7, y: 1.8 }, { x: -1.8, y: -1.2 }],
    points: [
      { x: 0.7, y: 0.7, label: 0 },
      { x: 2.4, y: 2.1, label: 1 },
    ],
  },
  {
    words: "A point far from all",
    exponent: 4,
    centers: [{ x: -0.6, y: -0.2 }, { x: 0.7, y: 0.1 }],
    points: [{ x: 3.5, y: 3, label: 1 }],
  },
];

export function byHand(): Node {
  let setting = copy(SETTINGS[0]!);
  let softening = 0;
  let shaded = true;
  let chosen = 0;

  const exponent = slider("Exponent n", { min: 0, max: 7, step: 0.05, value: 2 }, (value) => {
    setting.exponent = 2 ** value;
    draw();
  });
  const soft = slider("Softening, added to squared distances", { min: 0, max: 2, step: 0.01, value: 0 }, (value) => {
    softening = value;
    draw();
  });
  const fields: Field[] = (["harmonic", "standard"] as const).map((head) => ({
    head,
    canvas: h("canvas", { width: PIXELS, height: PIXELS, "aria-hidden": "true" }),
    svg: s("svg", { viewBox: "0 0 400 400", role: "group", "aria-label": `${head} head: centers and points` }),
  }));
  const table = scrolling("Probabilities", true);
  const more = button("Add a class", () => {
    const turn = setting.centers.length * 2.4;
    setting.centers.push({ x: round(2.4 * Math.cos(turn)), y: round(2.4 * Math.sin(turn)) });
    rebuild();
  });
  const fewer = button("Remove a class", () => {
    setting.centers.pop();
    setting.points = setting.points.filter((point) => point.label < setting.centers.length);
    if (!setting.points.length) setting.points.push({ x: 0, y: 0, label: 0 });
    chosen = Math.min(chosen, setting.points.length - 1);
    rebuild();
  });

  function probabilities(head: Field["head"], at: Point): number[] {
    return head === "harmonic"
      ? harmax(squaredDistances(at, setting.centers), setting.exponent, softening)
      : linearSoftmax(at, setting.centers);
  }

  function paint(field: Field): void {
    const context = field.canvas.getContext("2d")!;
    const image = context.createImageData(PIXELS, PIXELS);
    const colors = setting.centers.map((_, label) => rgb(classColor(label)));
    const paper = rgb(hex(getComputedStyle(document.documentElement).getPropertyValue("--page")));
    const even = 1 / setting.centers.length;
    for (let row = 0; row < PIXELS; row += 1) {
      for (let column = 0; column < PIXELS; column += 1) {
        const at = { x: REACH * ((2 * column + 1) / PIXELS - 1), y: REACH * (1 - (2 * row + 1) / PIXELS) };
        const found = probabilities(field.head, at);
        let best = 0;
        for (let label = 1; label < found.length; label += 1) if (found[label]! > found[best]!) best = label;
        // A shade of the winner's color: none where all classes are equally likely, full where one is certain.
        const strength = shaded ? 0.08 + 0.72 * ((found[best]! - even) / (1 - even)) : 0.62;
        const color = colors[best]!;
        const place = 4 * (row * PIXELS + column);
        for (let channel = 0; channel < 3; channel += 1) {
          image.data[place + channel] = strength * color[channel]! + (1 - strength) * paper[channel]!;
        }
        image.data[place + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
  }

  function handle(field: Field, what: "center" | "point", index: number): SVGGElement {
    const list = () => (what === "center" ? setting.centers : setting.points);
    const label = what === "center" ? index : setting.points[index]!.label;
    const shape =
      what === "center"
        ? s("rect", { x: -11, y: -11, width: 22, height: 22, rx: 4, fill: classColor(label), stroke: "#fff", "stroke-width": 2 })
        : s("circle", { r: 9, fill: classColor(label), stroke: "#000", "stroke-width": 1.5 });
    const node = s(
      "g",
      { class: "handle", tabindex: 0, role: "button", "data-what": `${what}-${index}` },
      s("circle", { r: 17, class: "ring" }),
      shape,
      s("text", { y: 4.5, class: "letter" }, LETTERS[label]!),
    );
    const move = (to: Point) => {
      const one = list()[index]!;
      one.x = clamp(to.x);
      one.y = clamp(to.y);
      if (what === "point") chosen = index;
      draw();
    };
    node.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      node.focus();
      node.setPointerCapture(event.pointerId);
      if (what === "point") chosen = index;
      draw();
    });
    node.addEventListener("pointermove", (event) => {
      if (!node.hasPointerCapture(event.pointerId)) return;
      const box = field.svg.getBoundingClientRect();
      move({
        x: REACH * ((2 * (event.clientX - box.left)) / box.width - 1),
        y: REACH * (1 - (2 * (event.clientY - box.top)) / box.height),
      });
    });
    node.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 0.5 : 0.1;
      const by = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
      if (!by) return;
      event.preventDefault();
      const one = list()[index]!;
      move({ x: round(one.x + by[0]!), y: round(one.y + by[1]!) });
    });
    node.addEventListener("focus", () => {
      if (what === "point" && chosen !== index) {
        chosen = index;
        draw();
      }
    });
    return node;
  }

  /** Make the handles again: their number has changed. */
  function rebuild(): void {
    for (const field of fields) {
      field.svg.replaceChildren(
        ...setting.centers.map((_, index) => handle(field, "center", index)),
        ...setting.points.map((_, index) => handle(field, "point", index)),
      );
    }
    more.disabled = setting.centers.length >= MOST;
    fewer.disabled = setting.centers.length <= 2;
    exponent.input.value = String(Math.log2(setting.exponent));
    draw();
  }

  let waiting = false;
  function draw(): void {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      exponent.show(short(setting.exponent));
      soft.show(short(softening));
      fields.forEach(paint);
      place();
      tabulate();
    });
  }

  function place(): void {
    for (const field of fields) {
      for (const node of field.svg.querySelectorAll<SVGGElement>(".handle")) {
        const [what, number] = node.dataset.what!.split("-") as ["center" | "point", string];
        const one = (what === "center" ? setting.centers : setting.points)[Number(number)]!;
        const label = what === "center" ? Number(number) : (one as Labelled).label;
        node.setAttribute("transform", `translate(${200 * (1 + one.x / REACH)} ${200 * (1 - one.y / REACH)})`);
        const name = what === "center" ? `Center of class ${LETTERS[label]}` : `Point of class ${LETTERS[label]}`;
        node.setAttribute("aria-label", `${name} at ${one.x.toFixed(1)}, ${one.y.toFixed(1)}. Arrow keys move it.`);
      }
    }
  }

  function tabulate(): void {
    const point = setting.points[chosen]!;
    const squared = squaredDistances(point, setting.centers);
    const ours = probabilities("harmonic", point);
    const theirs = probabilities("standard", point);
    const mean = (head: Field["head"]) =>
      setting.points.reduce((sum, one) => sum - Math.log(probabilities(head, one)[one.label]!), 0) / setting.points.length;
    const bar = (value: number, other = false) =>
      h("td", {}, percent(value), h("span", { class: other ? "bar other" : "bar", style: `width:${100 * value}%` }));
    const row = (_: Point, label: number) =>
      h(
        "tr",
        { "data-class": label },
        h("th", { scope: "row" }, h("span", { class: "swatch", style: `background:${classColor(label)}` }), LETTERS[label]!, label === point.label ? " (true)" : ""),
        h("td", { class: "number" }, short(Math.sqrt(squared[label]!))),
        bar(ours[label]!),
        bar(theirs[label]!, true),
      );
    const head = ["class", "distance", "HarMax", "softmax"].map((words, at) => h("th", { scope: "col", class: at === 1 ? "number" : "" }, words));
    table.replaceChildren(
      h("h3", {}, `Probabilities at the chosen point of class ${LETTERS[point.label]}`),
      h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...setting.centers.map(row))),
      h("p", { class: "quiet" }, `Mean loss over all points: ${short(mean("harmonic"))} with HarMax, ${short(mean("standard"))} with softmax.`),
    );
  }

  addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  rebuild();
  const words = {
    harmonic: ["HarMax", "the nearest center wins"],
    standard: ["Softmax", "the largest product of weight and point wins"],
  };
  return h(
    "div",
    {},
    h("h2", {}, "Move the centers and the points"),
    h(
      "p",
      {},
      "HarMax gives class j a probability proportional to 1 / (d² + softening)^(n/2). Here d is the distance from the " +
        "point to the center of class j. Squares are centers, circles are points. Both heads use the same weights.",
    ),
    h(
      "div",
      { class: "controls" },
      exponent.node,
      soft.node,
      checkbox("Shade by probability", shaded, (on) => {
        shaded = on;
        draw();
      }),
    ),
    h(
      "div",
      { class: "controls" },
      ...SETTINGS.map((one) =>
        button(one.words, () => {
          setting = copy(one);
          chosen = 0;
          rebuild();
        }),
      ),
      more,
      fewer,
    ),
    h(
      "div",
      { class: "pair" },
      ...fields.map((field) =>
        h(
          "div",
          { class: `card ${field.head}` },
          h("h3", {}, h("b", {}, words[field.head][0]!), h("span", {}, `: ${words[field.head][1]}`)),
          h("div", { class: "field" }, field.canvas, field.svg),
        ),
      ),
    ),
    h("div", { class: "card" }, table),
  );
}

function copy(setting: Setting): Setting {
  return structuredClone(setting);
}

function clamp(value: number): number {
  return Math.min(REACH, Math.max(-REACH, value));
}

function round(value: number): number {
  return Math.round(100 * value) / 100;
}

/** A color of the style sheet as six digits. */
function hex(color: string): string {
  const digits = color.trim();
  return digits.length === 4 ? `#${[...digits.slice(1)].map((one) => one + one).join("")}` : digits;
}
