// How a measured row is scaled to another size.
import type { CostRow } from "./document";

export interface Size {
  tokens: number;
  features: number;
  classes: number;
}

export interface Estimate {
  ms: number;
  mib: number;
  from: CostRow;
  /** Whether this size itself was measured. */
  exact: boolean;
  /** Whether this size is far from every measured one. */
  far: boolean;
}

export const BYTES: Record<string, number> = { float32: 4, bfloat16: 2, float16: 2, float64: 8 };
const IN_PIECES = new Set(["chunked", "triton_balanced", "triton_lean"]);
const FAR = 8; // times larger or smaller
const CONSTANT = new Set(["liger", "cut_cross_entropy"]);

const work = (size: Size) => size.tokens * size.features * size.classes;

/** What memory beyond the gradients grows with. */
function held(impl: string, size: Size): number {
  if (CONSTANT.has(impl)) return 1;
  return IN_PIECES.has(impl) ? (size.tokens + size.classes) * size.features : size.tokens * size.classes;
}

function distance(one: Size, other: Size): number {
  return (["tokens", "features", "classes"] as const).reduce((sum, key) => sum + Math.log(one[key] / other[key]) ** 2, 0);
}

/** Time and memory of an implementation at a size, from its nearest measured row. */
export function estimate(rows: CostRow[], size: Size): Estimate {
  const from = rows.reduce((one, other) => (distance(other, size) < distance(one, size) ? other : one));
  const gradients = ((size.tokens + size.classes) * size.features * (BYTES[from.dtype] ?? 4)) / 2 ** 20;
  return {
    ms: (from.ms * work(size)) / work(from),
    mib: gradients + (from.mib * held(from.impl, size)) / held(from.impl, from),
    from,
    exact: distance(from, size) === 0,
    far: distance(from, size) > Math.log(FAR) ** 2,
  };
}

/** The median factor by which the rule misses measured times; null where too few were measured. */
export function missed(rows: CostRow[]): number | null {
  if (rows.length < 3) return null;
  const factors = rows.map((row) => {
    const guess = estimate(rows.filter((other) => other !== row), row).ms;
    return Math.max(guess / row.ms, row.ms / guess);
  });
  return factors.sort((one, other) => one - other)[Math.floor(factors.length / 2)]!;
}
