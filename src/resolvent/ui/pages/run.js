// One run: its curves as they grow, what it solves, who took part, what happened.

import { $, api, duration, encoded, h, inTurn, live, Metrics, number, oncePerFrame, onTheme, shade, status, style, tell } from "./shared.js";
import { draw, positive, XS } from "./charts.js";

const id = new URLSearchParams(location.search).get("id") ?? "";
const place = `runs/${encoded(id)}`;
const metrics = new Metrics(id);
let row = null, detail = null, built = false, shownLosses = -1, paces = [];

const CHARTS = [
  { key: "first", title: "Gap", of: (c) => (some(c.gap) ? ["gap"] : ["value"]) },
  { key: "residual", title: "Residual", of: () => ["residual"] },
  { key: "certificates", title: "Certificates", of: () => ["stationarity", "consensus"] },
  { key: "more", title: "Step size", of: (c) => (some(c.test_accuracy) ? ["test_accuracy"] : some(c.average_value) ? ["average_value"] : ["eta"]) },
];
const NAMES = { gap: "Gap f(w) − f*", value: "Loss f(w)", residual: "Residual |Tu − u|", test_accuracy: "Test accuracy", eta: "Step size η" };
const some = (values) => values?.some((v) => v !== null);

// --- what does not change --------------------------------------------------------------------------------------------

/** Show a run that was just read. */
function begin() {
  document.title = `${row.title || row.id} · Resolvent`;
  $("name").textContent = row.title ? `${row.title} on ${row.problem}` : row.id;
  $("id").textContent = row.id;
  $("damage").hidden = !detail.damage.length;
  $("damage").textContent = detail.damage.length ? `This run is damaged: ${detail.damage.join(", ")}. Bring it back from a copy, or delete it and run it again.` : "";
  $("body").hidden = detail.damage.length > 0;
  $("downloads").hidden = detail.damage.length > 0;
  $("downloads").lastElementChild.replaceChildren(...[["csv", "CSV"], ["parquet", "Parquet"], ["png", "PNG picture"], ["svg", "SVG picture"], ["html", "HTML report"]]
    .map(([kind, words]) => h("a", { href: `/api/download/${kind}?run=${encoded(id)}`, download: `${id}.${kind}` }, words)));
  state();
  if (detail.damage.length || built) return;
  built = true;
  for (const name of ["round", "seconds", "bytes"]) $("x").add(new Option(XS[name], name));
  $("charts").replaceChildren(...CHARTS.map((chart) => h("section", { className: "card" }, h("h2", { id: `title-${chart.key}` }, chart.title), h("div", { className: "chart", id: `chart-${chart.key}` }))));
  explained();
  problem();
  partition();
  $("toml").textContent = detail.toml;
  $("environment").replaceChildren(...flat(detail.environment).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

function missing(words) {
  detail = null;
  source.close();
  clearTimeout(calm);
  document.querySelector("main").replaceChildren(h("div", { className: "empty" }, h("h2", {}, "No such run"), h("p", {}, words), h("a", { href: "/" }, "All runs")));
}

function explained() {
  const [first, ...rest] = detail.explanation.split("\n");
  $("words").replaceChildren(h("p", { className: "words" }, first), ...rest.map((line) => h("p", { className: line.startsWith("- ") ? "words note" : "words faint" }, line.replace(/^- /, ""))));
}

function problem() {
  const told = detail.problem, config = detail.config;
  const facts = [["users", told.users], ["dimension", told.dim], ["minimum f*", number(told.minimum, 6)], ["algorithm", row.title], ["settings", row.settings], ["created", row.created.slice(0, 19).replace("T", " ")]];
  if (detail.forked) facts.push(["forked from", `${detail.forked.run}, round ${detail.forked.round}`]);
  if (config.problem.partition) facts.push(["partition", config.problem.partition]);
  $("problem").replaceChildren(...facts.filter(([, value]) => value !== "" && value !== null && value !== undefined).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, String(value))]));
}

function flat(tree, before = "") {
  return Object.entries(tree).flatMap(([key, value]) => {
    if (value === null) return [];
    if (Array.isArray(value)) return [[before + key, value.join(" ")]];
    return typeof value === "object" ? flat(value, `${before}${key} `) : [[before + key, String(value)]];
  });
}

/** Bars with room for users' names. */
const wide = (names) => (names.some((name) => name.length > 4) ? "bars named" : "bars");

function partition() {
  const held = detail.problem.partition ?? {};
  const counts = held.counts ?? (held.users ?? []).map((n) => [n]);
  $("partition").hidden = !counts.length;
  if (!counts.length) return;
  const most = Math.max(...counts.map((user) => user.reduce((a, b) => a + b, 0)));
  const names = held.classes ?? ["rows"], users = held.names ?? counts.map((_, i) => String(i));
  const bars = counts.slice(0, 200).map((user, i) => {
    const total = user.reduce((a, b) => a + b, 0);
    const parts = user.map((n, k) => {
      const part = h("i", { className: `p${k % 10}`, title: `class ${names[k]}: ${n} rows` });
      part.style.width = `${(100 * n) / most}%`;
      return n ? part : null;
    });
    return h("div", {}, h("span", { title: users[i] }, users[i]), h("span", { className: "track" }, parts), h("span", { className: "number faint" }, String(total)));
  });
  const key = held.classes ? h("div", { className: "key" }, names.slice(0, 20).map((name, k) => h("span", {}, h("i", { className: `p${k % 10}` }), `class ${name}`))) : null;
  $("partition").lastElementChild.replaceChildren(h("div", { className: wide(users) }, bars), ...(key ? [key] : []));
}

// --- what does -------------------------------------------------------------------------------------------------------

function state() {
  $("status").replaceChildren(status(row.status));
  $("stop").hidden = row.status !== "running";
  $("resume").hidden = !["interrupted", "killed", "failed"].includes(row.status);
  const done = row.rounds ? Math.min(1, row.round / row.rounds) : 0, bar = $("progress");
  bar.firstElementChild.style.width = `${100 * done}%`;
  bar.setAttribute("aria-valuemax", row.rounds);
  bar.setAttribute("aria-valuenow", row.round);
  const parts = [`${row.round.toLocaleString("en")} of ${row.rounds.toLocaleString("en")} rounds`];
  if (row.seconds !== null) parts.push(`${duration(row.seconds)} computing`);
  const left = remaining();
  if (left) parts.push(`about ${left} left`);
  if (row.status !== "running" && row.reason && row.reason !== `${row.rounds} rounds`) parts.push(row.reason);
  $("advance").textContent = parts.join("  ·  ");
}

/** From the pace of the last ten seconds, by the clock on the wall. */
function remaining() {
  if (row.status !== "running") { paces = []; return ""; }
  const now = performance.now() / 1000;
  paces.push([now, row.round]);
  paces = paces.filter(([then]) => now - then < 10);
  const [[then, before]] = paces;
  if (row.round <= before || now - then < 0.4) return "";
  return duration(((row.rounds - row.round) * (now - then)) / (row.round - before));
}

async function rows() {
  await metrics.update();
  if (!detail) return;
  redraw();
  latest();
}

const LATEST = [["gap", "gap f(w) − f*"], ["value", "loss f(w)"], ["residual", "residual"], ["stationarity", "stationarity"], ["consensus", "consensus"], ["test_accuracy", "test accuracy"], ["eta", "η"], ["participants", "participants"], ["bytes", "bytes so far"], ["clock", "simulated seconds"]];

function latest() {
  const last = (name) => metrics.columns[name]?.at(-1);
  const told = LATEST.filter(([name]) => last(name) !== undefined && last(name) !== null).map(([name, words]) => [words, number(last(name), 4)]);
  $("latest").replaceChildren(...(told.length ? told : [["rounds", "none yet"]]).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

const redraw = oncePerFrame(() => {
  if (!detail || detail.damage.length) return;
  const x = $("x").value || "round", columns = metrics.columns;
  const wanted = document.querySelector("input[name=scale]:checked").value === "log";
  for (const chart of CHARTS) {
    const names = chart.of(columns).filter((name) => some(columns[name]));
    $(`title-${chart.key}`).textContent = names.length === 1 ? NAMES[names[0]] ?? names[0].replaceAll("_", " ") : chart.title;
    const lines = names.map((name, k) => ({ x: columns[x] ?? [], y: columns[name], label: name, colour: k ? "#666666" : row.colour, dash: k ? "dash" : "solid" }));
    const log = wanted && names[0] !== "test_accuracy" && positive(lines.map((line) => line.y));
    draw($(`chart-${chart.key}`), lines, { x, y: "", log, legend: names.length > 1, range: lines.length ? null : [0, row.rounds] });
  }
});

$("x").addEventListener("change", redraw);
for (const radio of document.querySelectorAll("input[name=scale]")) radio.addEventListener("change", redraw);

// --- who took part, each user's loss, events -------------------------------------------------------------------------

const DIGITS = ["absent", "came", "late", "work"];
const WORDS = { absent: "absent", came: "took part", late: "answered late", work: "still at work" };
let presence = null;

async function extras() {
  events();
  const round = row.status === "running" ? Math.floor(row.round / 50) : row.round;
  try {
    presence = await api(`${place}/participation`);
    if (detail) picture();
    if (round === shownLosses) return;
    const told = await api(`${place}/losses`);
    if (detail) losses(told);
    shownLosses = round;
  } catch (error) { if (detail) $("losses").textContent = error.message; }
}

function events() {
  const told = detail.events.map((event) => h("li", {}, h("time", { dateTime: event.time, title: event.time }, event.time.slice(11, 19)), h("span", {}, event.kind), h("span", { className: "faint" }, event.words)));
  $("events").replaceChildren(...told.reverse());
}

function picture() {
  const section = $("presence"), told = presence;
  section.hidden = told.kind === "unknown" || !told.rounds;
  if (section.hidden) return;
  if (told.kind === "everyone") { section.lastElementChild.replaceChildren(h("p", { className: "faint" }, `All ${told.users} users, in every round.`)); return; }
  const height = Math.max(4, Math.min(14, Math.round(220 / told.who.length))), n = told.who[0].length;
  const canvas = h("canvas", { className: "presence", width: n, height: told.who.length * height, role: "img" });
  canvas.setAttribute("aria-label", `Participation of ${told.who.length} users in rounds ${told.first} to ${told.rounds}`);
  const paint = canvas.getContext("2d");
  const colours = [style("--panel"), style("--blue"), style("--orange"), style("--line")];
  told.who.forEach((digits, i) => {
    for (let t = 0; t < digits.length; t++) { paint.fillStyle = colours[digits[t]]; paint.fillRect(t, i * height, 1, height - 1); }
  });
  canvas.style.height = `${told.who.length * height}px`;
  const used = DIGITS.filter((name) => (told.kind === "drawn" ? ["absent", "came"] : ["came", "late", "work"]).includes(name));
  const many = told.who.length < told.users ? `, the first ${told.who.length} of ${told.users} users` : "";
  section.lastElementChild.replaceChildren(canvas, h("div", { className: "key" }, h("span", {}, `rounds ${told.first} to ${told.rounds}${many}`), used.map((name) => h("span", {}, h("i", { className: name }), WORDS[name]))));
}

function losses(told) {
  const place = $("losses");
  if (!told.losses.length) { place.textContent = told.words; return; }
  const most = Math.max(...told.losses.filter((v) => v !== null), 0);
  place.replaceChildren(h("div", { className: wide(told.names) }, told.losses.slice(0, 200).map((value, i) => {
    const part = h("i");
    part.style.width = `${most > 0 ? (100 * Math.max(value ?? 0, 0)) / most : 0}%`;
    part.style.background = shade(row.colour);
    return h("div", {}, h("span", { title: told.names[i] }, told.names[i]), h("span", { className: "track" }, part), h("span", { className: "number" }, number(value, 4)));
  })), h("div", { className: "key" }, h("span", {}, `${told.what} at the model of round ${told.round}`)));
}

onTheme(() => { if (presence && detail) picture(); });

// --- stop, resume, changes -------------------------------------------------------------------------------------------

async function act(verb, words) {
  const button = $(verb);
  button.disabled = true;
  try { await api(`${place}/${verb}`, { body: {} }); tell(words); } catch (error) { tell(error.message, true); }
  button.disabled = false;
}

$("stop").addEventListener("click", () => act("stop", "Stopping after this round; what was done is stored"));
$("resume").addEventListener("click", () => act("resume", "Resuming"));

let calm, heard = false, failed = null;

/** Read the run again. An event that came meanwhile may be newer than the answer; events come in order. */
const look = inTurn(async () => {
  clearTimeout(calm);
  heard = false;
  let told;
  try {
    told = await api(place);
  } catch (error) {
    if (error.status === 404 || (error.status && !detail)) missing(error.message); else tell(error.message, true);
    return;
  }
  if (source.readyState === EventSource.CLOSED && !detail) return; // it was deleted
  detail = told;
  if (!heard) row = detail.row;
  begin();
  if (detail.damage.length) return;
  await rows().catch((error) => tell(error.message, true));
  if (detail) await extras();
});

const source = live({
  hello: look,
  again: look,
  runs: ({ changed, gone }) => {
    if (gone.includes(id)) { missing("It was deleted."); return; }
    const now = changed.find((each) => each.id === id);
    if (!now) return;
    const turned = now.status !== row?.status;
    row = now;
    heard = true;
    if (!detail) { look(); return; }
    state();
    if (!detail.damage.length) rows().catch(() => {});
    clearTimeout(calm);
    calm = setTimeout(look, turned ? 0 : 1500);
  },
  jobs: (jobs) => {
    const last = jobs.filter((job) => job.run === id).at(-1);
    if (last?.status === "failed" && last.id !== failed) { failed = last.id; tell(last.words, true); }
  },
});
