// When to answer, and whether confidence is right.

export const SCORES = {
  ratio: "ratio of the two nearest distances",
  distance: "distance to the nearest center",
  confidence: "probability of the answer",
};
export type Score = keyof typeof SCORES;

export interface Decisions {
  far: ArrayLike<number>;
  second: ArrayLike<number>;
  confidence: ArrayLike<number>;
}

/** A score per example; the higher, the sooner it is answered. */
export function scoreOf(score: Score, found: Decisions): number[] {
  const { far, second, confidence } = found;
  return Array.from({ length: far.length }, (_, at) => {
    if (score === "confidence") return confidence[at]!;
    if (score === "distance") return -far[at]!;
    return second[at]! > 0 ? -far[at]! / second[at]! : -1;
  });
}

/** The examples from the surest to the least sure, and the accuracy of the first one, the first two, and so on. */
export function risk(scores: number[], right: boolean[]): { order: number[]; accuracy: number[] } {
  const order = [...scores.keys()].sort((one, other) => scores[other]! - scores[one]!);
  let hits = 0;
  const accuracy = order.map((at, rank) => {
    hits += Number(right[at]);
    return hits / (rank + 1);
  });
  return { order, accuracy };
}

export interface Bin {
  count: number;
  confidence: number;
  accuracy: number;
}

/** Mean confidence and accuracy in 10 bins of confidence; empty bins are left out. */
export function reliability(confidence: ArrayLike<number>, right: boolean[], answered: boolean[], bins = 10): Bin[] {
  const found = Array.from({ length: bins }, () => ({ count: 0, confidence: 0, accuracy: 0 }));
  for (let at = 0; at < confidence.length; at += 1) {
    if (!answered[at]) continue;
    // A bin holds confidences above its lower edge and up to its upper edge.
    const bin = found[Math.min(bins - 1, Math.max(0, Math.ceil(confidence[at]! * bins) - 1))]!;
    bin.count += 1;
    bin.confidence += confidence[at]!;
    bin.accuracy += Number(right[at]);
  }
  return found
    .filter((bin) => bin.count)
    .map((bin) => ({ count: bin.count, confidence: bin.confidence / bin.count, accuracy: bin.accuracy / bin.count }));
}
