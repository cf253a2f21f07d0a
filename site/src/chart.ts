import { scaleLinear, scaleLog, type ScaleContinuousNumeric } from "d3-scale";
import { line } from "d3-shape";
import { s, short } from "./dom";

export interface Axis {
  from: number;
  to: number;
  words: string;
  log?: boolean;
  percent?: boolean;
}

export interface Chart {
  node: SVGSVGElement;
  x: ScaleContinuousNumeric<number, number>;
  y: ScaleContinuousNumeric<number, number>;
  marks: SVGGElement;
}

const EDGE = { left: 46, right: 14, top: 12, bottom: 40 };

/** An empty chart with axes. */
export function chart(words: string, across: Axis, up: Axis, size: { width: number; height: number }): Chart {
  const { width, height } = size;
  const make = (axis: Axis) => (axis.log ? scaleLog() : scaleLinear()).domain([axis.from, axis.to]);
  const x = make(across).range([EDGE.left, width - EDGE.right]);
  const y = make(up).range([height - EDGE.bottom, EDGE.top]);
  const tick = (axis: Axis, value: number) => (axis.percent ? `${Math.round(100 * value)}` : short(value));
  const few = (scale: typeof x, axis: Axis) =>
    scale.ticks(5).filter((value) => !axis.log || Math.abs(Math.log10(value) % 1) < 1e-9);
  const marks = s("g");
  const node = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words, class: "chart" });
  for (const value of few(x, across)) {
    node.append(
      s("line", { class: "grid", x1: x(value), x2: x(value), y1: EDGE.top, y2: height - EDGE.bottom }),
      s("text", { x: x(value), y: height - EDGE.bottom + 15, "text-anchor": "middle" }, tick(across, value)),
    );
  }
  for (const value of few(y, up)) {
    node.append(
      s("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      s("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, tick(up, value)),
    );
  }
  const middle = (EDGE.top + height - EDGE.bottom) / 2;
  node.append(
    s("text", { x: (EDGE.left + width - EDGE.right) / 2, y: height - 6, "text-anchor": "middle" }, across.words),
    s("text", { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, up.words),
    marks,
  );
  return { node, x, y, marks };
}

/** The path of a line through points that are finite. */
export function path(on: Chart, points: [number, number][]): string {
  return (
    line<[number, number]>()
      .defined(([x, y]) => Number.isFinite(x) && Number.isFinite(y))
      .x(([x]) => on.x(x))
      .y(([, y]) => on.y(y))(points) ?? ""
  );
}
