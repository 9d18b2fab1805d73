// The scheme under one's fingers: every slider's move runs the whole algorithm again.

import { $, api, copy, h, inTurn, number, onTheme, s, shade, style, tell } from "./shared.js";
import { draw, positive, YS } from "./charts.js";
import { drawPlane, phases } from "./plane.js";

const START = {
  problem: "plane", users: 5, dim: 8, heterogeneity: 0.5, penalty: 1, seed: 0, alpha: 2, beta: 2, gamma: 0.5, eta: 0.5, schedule: "constant",
  forward: false, steps: 1, anderson: 0, participation: 1, absent: "hold", delays: 1, rounds: 60, algorithm: "",
};
let offered, setup = { ...START }, told = null, place = 0, playing = null;
const problem = () => offered.problems.find((each) => each.name === setup.problem);
const algorithm = () => offered.algorithms.find((each) => each.name === told?.row);
const operator = () => algorithm()?.local?.replaceAll("-", " ");
/** Whoever leaves an algorithm with local steps of its own leaves their number, too. */
const leaving = () => (offered.algorithms.find((each) => each.name === setup.algorithm)?.local ? { steps: START.steps } : {});

// --- controls --------------------------------------------------------------------------------------------------------

const plain = (digits) => (value) => String(Number(value.toPrecision(digits)));
const SLIDERS = {
  heterogeneity: { words: "heterogeneity", range: () => [0, problem().heterogeneity[1], 0.01], off: () => false },
  users: { words: "users", range: () => [2, 12, 1], off: () => !problem().sized },
  dim: { words: "dimension", range: () => [1, 20, 1], off: () => !problem().sized },
  penalty: { words: "penalty t", range: () => [0, 20, 0.1], off: () => !problem().penalised },
  seed: { words: "seed", range: () => [0, 20, 1], off: () => !problem().sized && setup.participation === 1 && setup.delays === 1 },
  alpha: { words: "α", range: () => [0, 2, 0.01], label: "alpha" },
  beta: { words: "β", range: () => [0, 2, 0.01], label: "beta" },
  gamma: { words: "γ", range: () => [0, 2, 0.01], label: "gamma" },
  eta: { words: "η", range: () => [Math.log10(problem().eta[0]), Math.log10(problem().eta[2]), 0.01], log: true, label: "eta" },
  steps: { words: "k", range: () => [1, 20, 1], off: () => !setup.forward && !algorithm()?.local, label: "k, local gradient steps" },
  anderson: { words: "Anderson", range: () => [0, 10, 1], show: (v) => (v ? `memory ${v}` : "none"), label: "Anderson memory" },
  participation: { words: "participation", range: () => [0.05, 1, 0.05], show: (v) => `${Math.round(100 * v)} %`, off: () => setup.delays > 1 },
  delays: { words: "delays", range: () => [1, 20, 0.5], show: (v) => (v > 1 ? `${v}× slower` : "none"), label: "Delays: how many times slower the slowest user is" },
  rounds: { words: "rounds", range: () => [2, 200, 1] },
};
const PARTS = [["Problem", ["problem", "heterogeneity", "users", "dim", "penalty", "seed"]], ["Mixing", ["alpha", "beta", "gamma"]],
  ["Local step", ["forward", "steps", "eta", "schedule"]], ["Acceleration and presence", ["anderson", "participation", "absent", "delays"]], ["Run", ["rounds"]]];

function controls() {
  const select = (name, words, options) => h("select", { id: name, "aria-label": words, onchange: (event) => change({ [name]: event.target.value }) }, options.map(([value, text]) => h("option", { value }, text)));
  const segments = (name, words, options) => h("div", { className: "slide", id: `row-${name}` }, h("span", {}, words), h("div", { className: "segments", role: "radiogroup", "aria-label": words }, options.map(([value, text]) =>
    h("label", {}, h("input", { type: "radio", name, value: String(value), onchange: () => change({ [name]: value, ...(name === "forward" ? { ...leaving(), algorithm: "" } : {}) }) }), text))));
  const special = {
    problem: () => [select("problem", "Problem", offered.problems.map((each) => [each.name, each.title])), h("p", { className: "faint", id: "about" })],
    forward: () => [segments("forward", "users take", [[false, "prox"], [true, "gradient steps"]])],
    schedule: () => [h("div", { className: "slide" }, h("span", {}, "schedule"), select("schedule", "Schedule of eta", offered.schedules.map((name) => [name, name])))],
    absent: () => [segments("absent", "absent users", [["hold", "hold"], ["paper", "as printed"]])],
  };
  $("controls").replaceChildren(...PARTS.map(([title, names]) => h("section", {}, h("h2", {}, title), names.flatMap((name) => (special[name] ? special[name]() : [slider(name)])))));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("algorithms").replaceChildren(...offered.algorithms.map((each) => {
    const mark = h("i");
    mark.style.background = shade(each.colour);
    return h("button", { type: "button", "data-name": each.name, title: each.about, "aria-pressed": "false", onclick: () => change({ alpha: each.alpha, beta: each.beta, gamma: each.gamma, forward: each.forward, algorithm: each.name, ...leaving(), ...(each.local ? { steps: each.steps } : {}) }) }, mark, named(each.title));
  }));
}

/** R_H G with its H set low. */
const named = (title) => (title.startsWith("R_H ") ? h("span", {}, "R", h("sub", {}, "H"), title.slice(3)) : title);

function slider(name) {
  const spec = SLIDERS[name];
  const input = h("input", { type: "range", id: name, "aria-label": spec.label ?? spec.words, oninput: () => {
    const value = Number(input.value);
    change({ [name]: spec.log ? Number((10 ** value).toPrecision(3)) : value });
  } });
  return h("label", { className: "slide", id: `row-${name}` }, h("span", {}, spec.words), input, h("output", {}));
}

/** Bring every control to where the setup stands. */
function settle() {
  for (const [name, spec] of Object.entries(SLIDERS)) {
    const input = $(name), [low, high, step] = spec.range(), value = spec.log ? Math.log10(setup[name]) : setup[name];
    Object.assign(input, { min: low, max: high, step });
    if (Math.abs(Number(input.value) - value) > step / 2) input.value = value;
    const off = spec.off?.() ?? false;
    input.disabled = off;
    $(`row-${name}`).classList.toggle("off", off);
    $(`row-${name}`).querySelector("output").textContent = spec.show ? spec.show(setup[name]) : spec.log ? number(setup[name]) : plain(3)(setup[name]);
    input.setAttribute("aria-valuetext", $(`row-${name}`).querySelector("output").textContent);
  }
  for (const name of ["users", "dim"]) $(`row-${name}`).hidden = !problem().sized;
  $("row-penalty").hidden = !problem().penalised;
  $("problem").value = setup.problem;
  $("schedule").value = setup.schedule;
  $("about").textContent = problem().about;
  $("row-absent").classList.toggle("off", setup.participation === 1 || setup.delays > 1);
  for (const name of ["forward", "absent"]) for (const radio of document.getElementsByName(name)) {
    radio.checked = radio.value === String(setup[name]) && !(name === "forward" && operator());
    radio.disabled = (name === "absent" && (setup.participation === 1 || setup.delays > 1)) || (name === "forward" && setup.problem === "sets" && radio.value === "true");
  }
  $("pictures").classList.toggle("single", !problem().drawn);
  formula();
}

function change(part) {
  const before = setup.problem;
  setup = { ...setup, ...part };
  if (setup.problem !== before) setup = { ...setup, eta: problem().eta[1], heterogeneity: problem().heterogeneity[0], rounds: problem().rounds };
  if (setup.problem === "sets" && setup.forward) setup = { ...setup, forward: false };
  setup = { ...setup, heterogeneity: Math.min(setup.heterogeneity, problem().heterogeneity[1]) };
  settle();
  remember();
  ask();
}

// --- what the server computes ----------------------------------------------------------------------------------------

const ask = inTurn(async () => {
  const asked = setup; // a change makes another one
  try {
    const answer = await api("explore", { body: asked });
    if (asked.problem !== setup.problem) return; // the next answer is that of the problem which is chosen now
    const fresh = asked.problem !== told?.setup.problem;
    told = { ...answer, setup: asked };
    if (fresh) { place = firstLook(); measures(); }
    if (asked === setup) settle();
    show();
  } catch (error) { tell(error.message, true); }
});

const parts = () => phases(told.setup, operator());
const firstLook = () => parts().length - 1;

function measures() {
  const there = ["gap", "value", "residual", "consensus", "stationarity"].filter((name) => told.columns[name]?.some((v) => v !== null));
  const now = $("y").value, words = { gap: "gap", value: "loss" };
  $("y").replaceChildren(...there.map((name) => h("option", { value: name }, words[name] ?? name)));
  $("y").value = there.includes(now) && problem().y !== "residual" ? now : there.includes(problem().y) ? problem().y : there[0];
}

function show() {
  curve();
  if (problem().drawn && told.path?.length) { player(); picture(); }
  $("words").textContent = told.words + (told.status === "diverged" ? `\n${told.reason}` : "");
  $("took").textContent = `${told.columns.round.length} rounds in ${Math.max(1, Math.round(1000 * told.seconds))} ms`;
  for (const button of $("algorithms").children) button.setAttribute("aria-pressed", String(button.dataset.name === told.row));
  $("command").disabled = !told.command;
  $("note").textContent = told.note;
}

function curve() {
  const y = $("y").value, columns = told.columns, values = columns[y] ?? [];
  const log = positive([values]), limit = y === "gap" || y === "value" ? told.limit?.[y] : null;
  const marks = limit > (log ? 1e-14 : -Infinity) ? [{ y: limit, label: "predicted fixed point", colour: style("--accent") }] : [];
  draw($("chart"), [{ x: columns.round, y: values, label: algorithm()?.title ?? "custom", colour: algorithm()?.colour ?? "#666666", width: 2.4 }], { x: "round", y, log, marks });
}

// --- the plane -------------------------------------------------------------------------------------------------------

function player() {
  const last = told.path.length * parts().length - 1;
  $("at").max = last;
  place = Math.min(place, last);
  $("at").value = place;
}

function picture() {
  const names = parts(), t = Math.floor(place / names.length), [phase, words] = names[place % names.length];
  drawPlane($("plane"), told, told.setup, t, phase, algorithm()?.colour ?? "#666666");
  $("where").textContent = `round ${t + 1}, ${words}`;
  $("plane").setAttribute("aria-label", `Round ${t + 1}: ${words}`);
  key();
}

function key() {
  const sample = (kind, extra) => s("svg", { viewBox: "0 0 26 12", class: "plane" }, s("line", { class: kind, x1: 1, y1: 6, x2: 25, y2: 6, stroke: style("--ink"), ...extra }));
  const local = operator() ?? (told.setup.forward ? "gradient steps" : "prox");
  const entries = [["prox", local], ...(told.setup.alpha === 1 ? [] : [["reflect", told.setup.alpha === 2 ? "reflection" : "relaxation"]]), ["meet", "to the mean"]];
  $("key").replaceChildren(...entries.map(([kind, words]) => h("span", {}, sample(kind), words)), h("span", {}, sample("go"), "move"), h("span", {}, "○ w*"), h("span", {}, "× predicted"));
}

function step(by) {
  const last = Number($("at").max);
  place = place + by > last ? 0 : place + by;
  $("at").value = place;
  picture();
}

const PLAY = "M6 4v12l10-6z", PAUSE = "M5.5 4h3.2v12H5.5zM11.3 4h3.2v12h-3.2z";

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => { if (place >= Number($("at").max)) play(false); else step(1); }, 420) : null;
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  $("play").querySelector("path").setAttribute("d", on ? PAUSE : PLAY);
}

$("play").addEventListener("click", () => { if (!playing && place >= Number($("at").max)) place = 0; play(!playing); });
$("next").addEventListener("click", () => { play(false); step(1); });
$("at").addEventListener("input", () => { play(false); place = Number($("at").value); picture(); });
$("y").addEventListener("change", curve);
onTheme(() => { if (told) { for (const button of $("algorithms").children) button.firstChild.style.background = shade(offered.algorithms.find((each) => each.name === button.dataset.name).colour); show(); } });

// --- words, links and copies -----------------------------------------------------------------------------------------

function formula() {
  const { alpha, beta, gamma, forward, steps } = setup, b = (value) => h("b", {}, plain(3)(value));
  const v = (letter) => h("i", {}, letter, h("sub", {}, "i"));
  const own = operator(), local = () => [own ? "local" : forward ? h("i", {}, "G", steps > 1 ? h("sup", {}, String(steps)) : null) : "prox", " ", v("u")];
  const words = (value, one, two) => (value === 1 ? one : value === 2 ? two : value === 0 ? "nothing happens" : value < 1 ? "under-relaxed" : "over-relaxed");
  const line = (left, value, old, fresh, said) => h("div", {}, left, " = ", b(Number((1 - value).toFixed(10))), " ", old, " + ", b(value), " ", fresh, h("span", {}, said));
  $("formula").replaceChildren(
    line(v("z"), alpha, v("u"), local(), words(alpha, forward ? "gradient" : "prox", "reflect") + (own ? `; local: ${own}` : "")),
    line(v("w"), beta, v("z"), ["mean ", h("i", {}, "z")], words(beta, "project", "reflect")),
    line(v("u"), gamma, v("u"), v("w"), gamma === 1 ? "move all the way" : gamma === 0.5 ? "average" : words(gamma, "", "")));
}

function remember() {
  const parameters = new URLSearchParams(Object.entries(setup).filter(([name, value]) => name === "problem" || value !== START[name]).map(([name, value]) => [name, String(value)]));
  history.replaceState(null, "", `#${parameters}`);
}

function recall() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const first = offered.problems.find((each) => each.name === (given.problem ?? START.problem)) ?? offered.problems[0];
  setup = { ...START, problem: first.name };
  if (!location.hash) setup = { ...setup, eta: first.eta[1], heterogeneity: first.heterogeneity[0], rounds: first.rounds };
  for (const [name, text] of Object.entries(given)) {
    if (!(name in START) || name === "problem") continue;
    const kind = typeof START[name];
    setup[name] = kind === "number" ? Number(text) : kind === "boolean" ? text === "true" : text;
  }
}

$("link").addEventListener("click", () => copy(location.href, "Link"));
$("python").addEventListener("click", () => copy(told.python, "Python"));
$("command").addEventListener("click", () => copy(told.command, "Command"));
addEventListener("hashchange", () => { recall(); settle(); ask(); });

$("live").hidden = true;
offered = await api("explorer");
recall();
controls();
settle();
remember();
await ask();
