"use strict";
const byId = (id) => document.getElementById(`page.${id}`);
const form = byId("filter"), claims = [...document.querySelectorAll(".claim")];
const sections = [...document.querySelectorAll("section[data-experiment]")];
const words = new Map(claims.map((claim) => [claim, claim.textContent.toLowerCase()]));

const openAtFirst = new Map(sections.map((section) => [section, section.querySelector(".claims > .fold[open]")]));

function filter() {
  const data = new FormData(form), text = data.get("text").trim().toLowerCase();
  const verdicts = data.getAll("verdict"), kind = data.get("kind"), experiment = data.get("experiment");
  const every = form.querySelectorAll("[name=verdict]").length === verdicts.length;
  const ofClaims = Boolean(text || kind || !every), narrowed = ofClaims || Boolean(experiment);
  document.body.classList.toggle("narrowed", ofClaims); // who asks for claims wants no figures between them
  let shown = 0;
  for (const section of sections) {
    const named = section.dataset.text.toLowerCase().includes(text);
    const wanted = !experiment || section.dataset.experiment === experiment;
    let own = 0;
    for (const claim of section.querySelectorAll(".claim")) {
      const fits = wanted && verdicts.includes(claim.dataset.verdict) && (!kind || claim.dataset.kind === kind) &&
        (named || words.get(claim).includes(text));
      claim.hidden = !fits;
      own += fits;
    }
    for (const fold of section.querySelectorAll(".claims > .fold")) {
      fold.hidden = !fold.querySelector(".claim:not([hidden])");
      fold.open = ofClaims ? !fold.hidden : fold === openAtFirst.get(section);
    }
    section.hidden = narrowed && !own;
    document.querySelector(`nav li[data-experiment="${CSS.escape(section.dataset.experiment)}"]`).hidden = section.hidden;
    shown += own;
  }
  byId("count").textContent = (narrowed ? `${shown} of ` : "") + `${claims.length} claims` + (ofClaims ? ", without figures" : "");
  byId("nothing").hidden = !narrowed || shown > 0;
}
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filter));
filter(); // a reloaded page keeps its fields

for (const button of document.querySelectorAll("[data-show-verdict]")) button.addEventListener("click", () => {
  form.reset();
  for (const box of form.querySelectorAll("[name=verdict]")) box.checked = box.value === button.dataset.showVerdict;
  form.elements.kind.value = button.dataset.showKind;
  setTimeout(() => { filter(); sections.find((section) => !section.hidden)?.scrollIntoView(); });
});

const menu = byId("menu"), contents = byId("contents");
function toggle(open) { contents.classList.toggle("open", open); menu.setAttribute("aria-expanded", open); }
menu.addEventListener("click", () => toggle(!contents.classList.contains("open")));
contents.querySelector("ol").addEventListener("click", (event) => { if (event.target.closest("a")) toggle(false); });

const themes = ["automatic", "light", "dark"], theme = byId("theme");
function choose(name) {
  theme.textContent = `Theme: ${name}`;
  if (name === "automatic") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  try { localStorage.setItem("harmax-theme", name); } catch { /* a page from disk may have no storage */ }
}
let stored = null;
try { stored = localStorage.getItem("harmax-theme"); } catch { /* as above */ }
choose(themes.includes(stored) ? stored : "automatic");
theme.addEventListener("click", () => choose(themes[(themes.indexOf(theme.textContent.slice(7)) + 1) % 3]));

const view = byId("view"), body = byId("view-body");
for (const button of document.querySelectorAll("[data-enlarge]")) button.addEventListener("click", () => {
  const figure = document.getElementById(button.dataset.enlarge);
  body.replaceChildren(...[...figure.querySelectorAll(".version")].map((version) => {
    const box = document.createElement("div"), sheet = document.createElement("div");
    sheet.className = "sheet";
    sheet.append(version.querySelector("img").cloneNode());
    const title = document.createElement("h3");
    title.textContent = version.classList.contains("here") ? "This machine" : "Published";
    const caption = version.querySelector("figcaption").cloneNode(true);
    caption.querySelector("button")?.remove();
    box.append(title, sheet, caption);
    return box;
  }));
  view.showModal();
  view.scrollTop = 0;
});
view.addEventListener("click", (event) => { if (event.target === view) view.close(); });

// A link to a claim opens what folds it away.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

const links = new Map([...contents.querySelectorAll("li")].map((item) => [item.dataset.experiment, item]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) links.get(entry.target.dataset.experiment).classList.toggle("current", entry.isIntersecting);
}, { rootMargin: "-15% 0px -80% 0px" });
for (const section of sections) watcher.observe(section);
