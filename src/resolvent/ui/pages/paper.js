// The paper's figures: captions, pictures and verdicts of what has been run here. A panel is judged when it comes into sight.

import { $, api, encoded, h, tell } from "./shared.js";

const MARKS = { holds: "holds", "holds in part": "holds in part", "does not hold": "does not hold" };

async function begin() {
  const { folder, figures } = await api("paper");
  const panels = figures.flatMap((figure) => figure.panels), there = panels.filter((panel) => panel.there === panel.runs).length;
  $("lead").textContent = there === panels.length ? `All ${there} panels, from the runs in ${folder}/.` :
    `${there} of ${panels.length} panels can be shown from the runs in ${folder}/ and from closed forms. The others say which command runs them. All of them: `;
  const command = (words) => h("code", { className: "command" }, words), trained = panels.some((panel) => panel.networks && panel.there < panel.runs);
  if (there < panels.length) $("lead").append(command("resolvent reproduce all"), ...(trained ? ["; those without networks, which take minutes: ", command("resolvent reproduce all --only convex")] : []));
  $("contents").replaceChildren(...figures.map((figure) => h("a", { href: `#${figure.name}` }, figure.title)));
  $("figures").replaceChildren(...figures.map(section));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function section(figure) {
  return h("section", { className: "figure", id: figure.name }, h("h2", {}, figure.title), h("p", {}, figure.caption),
    figure.settings ? h("p", { className: "faint" }, figure.settings) : null,
    h("div", { className: "panels" }, figure.panels.map((panel) => place(figure, panel))));
}

function place(figure, panel) {
  const body = h("div", {}), settings = panel.networks && figure.network_settings ? h("p", { className: "faint settings" }, figure.network_settings) : null;
  const card = h("article", { className: "card panel" }, h("h3", {}, panel.title, h("span", {}, figure.panels.length > 1 ? `  ${panel.key}` : "")), body, settings ?? "");
  if (panel.there < panel.runs) {
    const only = figure.panels.length > 1 ? ` --panel ${panel.key}` : "";
    body.append(h("p", { className: "faint" }, `Not run here: ${panel.runs - panel.there} of ${panel.runs} runs are missing${panel.networks ? "; it trains networks" : ""}.`),
      h("p", {}, h("code", { className: "command" }, `resolvent reproduce ${figure.name}${only}`)));
    return card;
  }
  body.append(h("p", { className: "faint" }, "Reading its runs …"));
  card.dataset.waiting = "";
  sight.observe(card);
  waiting.set(card, () => fill(figure, panel, card, body));
  return card;
}

const waiting = new Map();
let turn = Promise.resolve();
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting || !waiting.has(entry.target)) continue;
    const work = waiting.get(entry.target);
    waiting.delete(entry.target);
    sight.unobserve(entry.target);
    turn = turn.then(work).catch((error) => tell(error.message, true));
  }
}, { rootMargin: "300px" });

async function fill(figure, panel, card, body) {
  const where = `paper/${encoded(figure.name)}/${encoded(panel.key)}`;
  const made = await api(where);
  delete card.dataset.waiting;
  const parts = [];
  card.classList.toggle("drawn", made.picture);
  if (made.picture) parts.push(h("img", { src: `/api/${where}/picture`, alt: panel.title, loading: "lazy", width: 960, height: 555 }));
  if (made.heads.length) {
    card.classList.add("wide");
    parts.push(h("div", { className: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, made.heads.map((head) => h("th", {}, head)))),
      h("tbody", {}, made.rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))))));
  }
  if (made.verdicts.length) parts.push(h("ul", { className: "claims" }, made.verdicts.map(({ claim, said, measured, ours }) =>
    h("li", {}, h("span", { className: "said", "data-said": said }, MARKS[said] ?? said), h("span", {}, claim, ours ? h("span", { className: "faint" }, " (ours)") : null, h("small", {}, measured))))));
  body.replaceChildren(...parts);
}

$("live").hidden = true;
begin().catch((error) => tell(error.message, true));
