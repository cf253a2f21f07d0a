/** Squared distances of a point to each center. */
export function squaredDistances(point: Point, centers: Point[]): number[] {
  return centers.map((center) => (point.x - center.x) ** 2 + (point.y - center.y) ** 2);
}

export interface Point {
  x: number;
  y: number;
}

/**
 * The HarMax of a point: p_j is proportional to (d_j^2 + softening)^(-exponent / 2).
 * On a center without softening that center takes all; centers in one place share.
 */
export function harmax(squared: number[], exponent: number, softening: number): number[] {
  const there = squared.filter((value) => value + softening === 0).length;
  if (there > 0) return squared.map((value) => (value + softening === 0 ? 1 / there : 0));
  return softmax(squared.map((value) => (-exponent / 2) * Math.log(value + softening)));
}

export function softmax(logits: number[]): number[] {
  const top = Math.max(...logits);
  const odds = logits.map((value) => Math.exp(value - top));
  const sum = odds.reduce((one, other) => one + other, 0);
  return odds.map((value) => value / sum);
}

/** What a linear head with the same weights gives: the softmax of w_j x. */
export function linearSoftmax(point: Point, weights: Point[]): number[] {
  return softmax(weights.map((weight) => weight.x * point.x + weight.y * point.y));
}
