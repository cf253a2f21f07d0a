// The colors of harmax.figures, so that a head looks the same in every picture.
export const HEADS: Record<string, { words: string; color: string }> = {
  linear: { words: "standard", color: "var(--standard)" },
  harmonic: { words: "harmonic", color: "var(--harmonic)" },
};
export const CLASS_COLORS = ["#332288", "#CC6677", "#44AA99", "#999933", "#AA4499", "#88CCEE", "#882255"];

export function classColor(index: number): string {
  return CLASS_COLORS[index % CLASS_COLORS.length]!;
}

export function rgb(color: string): [number, number, number] {
  const at = (from: number) => Number.parseInt(color.slice(from, from + 2), 16);
  return [at(1), at(3), at(5)];
}
