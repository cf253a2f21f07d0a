import type { GrownRun } from "./document";
import { s } from "./dom";
import { unpack } from "./packed";

const SIDE = 440;
const MARGIN = 26;
const MOST_NAMES = 200; // more would be a black cloud
const AXES = 3;

/** A thousandth of a pixel is exact enough, and `toFixed` is slow. */
function fine(value: number): number {
  return Math.round(1000 * value) / 1000;
}

/** The tokens of a run in a plane, at any time between its snapshots. */
export class Plane {
  readonly node: SVGSVGElement;
  private readonly points: ArrayLike<number>;
  private readonly units: ArrayLike<number>;
  private readonly edges: ArrayLike<number>;
  private readonly dots: SVGCircleElement[];
  private readonly texts: SVGTextElement[];
  private readonly lines = s("path", { class: "edges" });
  private readonly layer = s("g");
  private readonly count: number;

  constructor(
    readonly run: GrownRun,
    private readonly across: number,
    private readonly up: number,
    words: string,
  ) {
    this.points = unpack(run.points);
    this.units = unpack(run.units);
    this.edges = unpack(run.edges);
    this.count = run.labels.length;
    const radius = this.count > 500 ? 2.5 : this.count > 60 ? 5 : 7;
    this.dots = run.labels.map((label, token) => {
      const dot = s("circle", { r: radius, fill: run.colors[token], class: "dot", "data-token": label });
      dot.append(s("title", {}, label));
      return dot;
    });
    const named = this.count <= MOST_NAMES;
    this.texts = named ? run.labels.map((label) => s("text", { class: "name" }, label)) : [];
    if (this.count > 60) this.layer.setAttribute("style", "font-size:9px");
    this.layer.append(...this.texts);
    this.node = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": words, class: "plane" }, this.lines, s("g", {}, ...this.dots), this.layer);
    for (const text of this.texts) text.style.fontSize = this.count > 60 ? "9px" : "";
  }

  name(on: boolean): void {
    this.layer.style.display = on ? "" : "none";
  }

  /** Move the tokens to a time: 0 is the first snapshot, 1.5 is halfway between the second and the third. */
  move(time: number): void {
    const last = this.run.epochs.length - 1;
    const from = Math.min(last, Math.floor(time));
    const to = Math.min(last, from + 1);
    const part = Math.min(1, Math.max(0, time - from));
    const { count, points } = this;
    const before = (1 - part) * this.units[from]!;
    const after = part * this.units[to]!;
    const xs = new Float64Array(count);
    const ys = new Float64Array(count);
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let token = 0; token < count; token += 1) {
      const one = AXES * (from * count + token);
      const other = AXES * (to * count + token);
      const x = before * points[one + this.across]! + after * points[other + this.across]!;
      const y = before * points[one + this.up]! + after * points[other + this.up]!;
      xs[token] = x;
      ys[token] = y;
      if (x < left) left = x;
      if (x > right) right = x;
      if (y < bottom) bottom = y;
      if (y > top) top = y;
    }
    // The view follows the tokens' size. Both axes have one scale.
    const scale = (SIDE - 2 * MARGIN) / (Math.max(right - left, top - bottom) || 1);
    const middleX = (left + right) / 2;
    const middleY = (bottom + top) / 2;
    this.node.dataset.view = `${middleX} ${middleY} ${scale}`;
    let edges = "";
    for (let token = 0; token < count; token += 1) {
      xs[token] = SIDE / 2 + scale * (xs[token]! - middleX);
      ys[token] = SIDE / 2 - scale * (ys[token]! - middleY);
      const x = String(fine(xs[token]!));
      const y = String(fine(ys[token]!));
      const dot = this.dots[token]!;
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      const text = this.texts[token];
      if (text) {
        text.setAttribute("x", x);
        text.setAttribute("y", String(ys[token]! - 10));
      }
    }
    for (let edge = 0; edge < this.edges.length; edge += 2) {
      const [one, other] = [this.edges[edge]!, this.edges[edge + 1]!];
      edges += `M${fine(xs[one]!)} ${fine(ys[one]!)}L${fine(xs[other]!)} ${fine(ys[other]!)}`;
    }
    this.lines.setAttribute("d", edges);
  }
}
