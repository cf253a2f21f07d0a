// Small helpers around the DOM. Text is always set as text, never as HTML.

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

const SVG = "http://www.w3.org/2000/svg";

function fill(node: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value as EventListener);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
}

export function h<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(name);
  fill(node, attributes, children);
  return node;
}

export function s<K extends keyof SVGElementTagNameMap>(
  name: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, name) as SVGElementTagNameMap[K];
  fill(node, attributes, children);
  return node;
}

/** A sentence in which `code` stands between backticks. */
export function prose(words: string): Node[] {
  return words.split(/`([^`]+)`/).map((part, place) => (place % 2 ? h("code", {}, part) : document.createTextNode(part)));
}

/** A labelled menu. */
export function menu(
  words: string,
  options: [value: string, words: string][],
  chosen: string,
  changed: (value: string) => void,
): HTMLLabelElement {
  const select = h("select", { change: () => changed(select.value) });
  for (const [value, text] of options) select.append(h("option", { value, selected: value === chosen }, text));
  select.value = chosen;
  return h("label", { class: "control" }, h("span", {}, words), select);
}

export interface Slider {
  node: HTMLLabelElement;
  input: HTMLInputElement;
  show(words: string): void;
}

/** A labelled slider that shows its value in words. */
export function slider(
  words: string,
  range: { min: number; max: number; step: number; value: number },
  changed: (value: number) => void,
): Slider {
  const input = h("input", { type: "range", ...range, input: () => changed(Number(input.value)) });
  input.value = String(range.value);
  const shown = h("output");
  const show = (text: string) => {
    shown.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  return { node: h("label", { class: "control slider" }, h("span", {}, words), input, shown), input, show };
}

export function checkbox(words: string, on: boolean, changed: (on: boolean) => void): HTMLLabelElement {
  const input = h("input", { type: "checkbox", change: () => changed(input.checked) });
  input.checked = on;
  return h("label", { class: "control check" }, input, h("span", {}, words));
}

export function button(words: string, pressed: () => void, attributes: Attributes = {}): HTMLButtonElement {
  return h("button", { type: "button", click: pressed, ...attributes }, words);
}

/** A place for a wide table, which a keyboard can scroll. */
export function scrolling(words: string, live = false): HTMLDivElement {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": words, "aria-live": live ? "polite" : undefined });
}

/** Digits that a person reads: three that count. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return "infinite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
}

export function percent(share: number): string {
  return `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;
}
