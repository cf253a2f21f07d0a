// What a page is made of. src/harmax/inspect/explorer/document.py has the same names; a test compares them.

/** Numbers of one type, row by row, in base64. */
export interface Packed {
  type: "float32" | "int16" | "int32" | "uint8";
  shape: number[];
  data: string;
}

export interface ExplorerDocument {
  title: string;
  made_by: string;
  source: string;
  growth: GrownRun[];
  classifiers: ShownClassifier[];
  verdicts: Verdicts | null;
  costs: CostRow[];
  /** What could not be read, in sentences for the reader. */
  notes: string[];
  /** Per view without data: why, and what to do. */
  missing: Record<string, string>;
}

/** One training: where its tokens are at each stored epoch, and its accuracies. */
export interface GrownRun {
  task: string;
  task_title: string;
  protocol: string;
  model: string;
  head: string;
  seed: number;
  labels: string[];
  colors: string[];
  /** Pairs of tokens to join, (E, 2). */
  edges: Packed;
  /** Epochs that were finished at each snapshot, (T,). */
  epochs: number[];
  /** Coordinates of the tokens along three principal axes of the last snapshot, (T, K, 3), in units of `units`. */
  points: Packed;
  /** The unit of each snapshot, (T,). */
  units: Packed;
  /** Share of the last snapshot's variance in each of the three axes. */
  shares: number[];
  curve_epochs: Packed;
  train_accuracy: Packed;
  test_accuracy: Packed;
  /** Why there is nothing to see; empty for whole runs. */
  note: string;
}

/** A picture, a text or a row of a table. One of the three is there. */
export interface Example {
  title: string;
  picture: string;
  text: string;
  row: Record<string, string>;
}

export interface Neighbor {
  example: Example;
  label: number;
  distance: number;
}

export interface ShownExample {
  /** Its place among all test examples. */
  place: number;
  example: Example;
  /** To every center, (V,). */
  distances: Packed;
}

export interface ShownClassifier {
  name: string;
  source: string;
  classes: string[];
  exponent: number;
  softening: number;
  train_count: number;
  /** Pictures of the centers of a one-layer classifier; empty for others. */
  centers: Example[];
  /** The training examples nearest to each center. */
  nearest: Neighbor[][];
  /** Classes of all test examples, (N,). */
  label: Packed;
  winner: Packed;
  runner_up: Packed;
  winner_distance: Packed;
  runner_up_distance: Packed;
  /** Probability of the winner, (N,). */
  confidence: Packed;
  examples: ShownExample[];
}

export interface Verdicts {
  experiments: JudgedExperiment[];
  claims: JudgedClaim[];
}

export interface JudgedExperiment {
  name: string;
  title: string;
  figure: string;
  /** Where its published page is. */
  address: string;
  command: string;
  figures: Figure[];
}

export interface Figure {
  name: string;
  /** A data address, or empty. */
  picture: string;
  address: string;
}

export interface JudgedClaim {
  id: string;
  experiment: string;
  statement: string;
  rule: string;
  paper: string;
  places: string[];
  control: boolean;
  results: JudgedResult[];
}

/** What the published runs, or runs of a folder, say about a claim. */
export interface JudgedResult {
  origin: string;
  profile: string;
  verdict: string;
  sentence: string;
  address: string;
}

/** One measured implementation at one shape. */
export interface CostRow {
  impl: string;
  place: string;
  tokens: number;
  features: number;
  classes: number;
  dtype: string;
  ms: number;
  mib: number;
  gradients_mib: number;
}
