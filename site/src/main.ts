import "./page.css";
import type { ExplorerDocument } from "./document";
import { button, h, prose } from "./dom";
import { byHand } from "./views/by_hand";
import { classifiers } from "./views/classifiers";
import { costs } from "./views/costs";
import { growth } from "./views/growth";
import { verdicts } from "./views/verdicts";

interface View {
  key: string;
  title: string;
  has: (data: ExplorerDocument) => boolean;
  draw: (data: ExplorerDocument) => Node;
}

const VIEWS: View[] = [
  { key: "growth", title: "Watch it grow", has: (data) => data.growth.length > 0, draw: growth },
  { key: "by_hand", title: "HarMax by hand", has: () => true, draw: byHand },
  { key: "classifiers", title: "Why this class", has: (data) => data.classifiers.length > 0, draw: classifiers },
  { key: "verdicts", title: "Verdicts", has: (data) => data.verdicts !== null, draw: verdicts },
  { key: "costs", title: "Cost", has: (data) => data.costs.length > 0, draw: costs },
];
const EMPTY: ExplorerDocument = {
  title: "harmax explorer",
  made_by: "",
  source: "",
  growth: [],
  classifiers: [],
  verdicts: null,
  costs: [],
  notes: ["This is the empty template. Make a page with data with `harmax explore`."],
  missing: {},
};

function themeButton(): HTMLButtonElement {
  const root = document.documentElement;
  const dark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const node = button("", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
    dispatchEvent(new Event("themechange"));
  });
  const show = () => (node.textContent = dark() ? "Light colors" : "Dark colors");
  show();
  return node;
}

function nothing(data: ExplorerDocument, view: View): Node {
  return h("p", { class: "empty" }, ...prose(data.missing[view.key] ?? "This page has no data for this view."));
}

function start(data: ExplorerDocument): void {
  document.title = data.title;
  const drawn = new Set<string>();
  const tabs = new Map<string, HTMLButtonElement>();
  const panels = new Map<string, HTMLElement>();
  const open = (key: string, focus = false) => {
    for (const view of VIEWS) {
      const on = view.key === key;
      const tab = tabs.get(view.key)!;
      const panel = panels.get(view.key)!;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel.hidden = !on;
      if (on && !drawn.has(key)) {
        drawn.add(key);
        panel.append(view.has(data) ? view.draw(data) : nothing(data, view));
      }
      if (on && focus) tab.focus();
      if (on) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    // Not the panel's own id, to which the browser would scroll, past the heading.
    history.replaceState(null, "", `#view=${key}`);
    dispatchEvent(new Event("viewchange"));
  };
  const list = h("div", { role: "tablist", "aria-label": "Views", class: "tabs" });
  list.addEventListener("keydown", (event) => {
    const at = VIEWS.findIndex((view) => tabs.get(view.key)!.getAttribute("aria-selected") === "true");
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(VIEWS[(to + VIEWS.length) % VIEWS.length]!.key, true);
  });
  const main = h("main");
  for (const view of VIEWS) {
    const ids = { role: "tab", id: `tab-${view.key}`, "aria-controls": view.key };
    const tab = button(view.title, () => open(view.key), { ...ids, class: view.has(data) ? "" : "without" });
    tabs.set(view.key, tab);
    list.append(tab);
    const panel = h("section", { role: "tabpanel", id: view.key, "aria-labelledby": `tab-${view.key}`, hidden: true });
    panels.set(view.key, panel);
    main.append(panel);
  }
  const notes = data.notes.length
    ? h(
        "details",
        { class: "notes", open: !data.growth.length && !data.classifiers.length },
        h("summary", {}, `${data.notes.length} ${data.notes.length === 1 ? "note" : "notes"} on the data of this page`),
        h("ul", {}, ...data.notes.map((words) => h("li", {}, ...prose(words)))),
      )
    : null;
  const words = ["Made", data.source && `from ${data.source}`, data.made_by && `by ${data.made_by}`].filter(Boolean).join(" ");
  document.querySelector("#page")!.replaceChildren(
    h("header", {}, h("div", { class: "heading" }, h("h1", {}, data.title), themeButton()), list),
    notes ?? "",
    main,
    h("footer", {}, words === "Made" ? "" : `${words}. `, "This page loads nothing from a network."),
  );
  const named = () => location.hash.replace(/^#(view=)?/, "");
  const asked = named();
  const first = VIEWS.find((view) => view.key === asked) ?? VIEWS.find((view) => view.has(data));
  open(first!.key);
  addEventListener("hashchange", () => {
    if (tabs.has(named())) open(named());
  });
}

start((JSON.parse(document.querySelector("#harmax-document")!.textContent ?? "null") as ExplorerDocument | null) ?? EMPTY);
