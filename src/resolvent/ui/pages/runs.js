// Every run in a table that shows only the rows in sight, and the curves of those that are selected.

import { $, ago, api, duration, encoded, h, inTurn, live, Metrics, number, oncePerFrame, onTheme, shade, status, tell } from "./shared.js";
import { draw, plotly, positive, XS, YS } from "./charts.js";
import { openForm } from "./form.js";

const HEIGHT = 54, SPARE = 6, MOST = 60, MOST_IN_LEGEND = 12;
const COLUMNS = [
  ["title", "Run", "cell-name"], ["status", "Status", "cell-status"], ["round", "Rounds", "cell-rounds"],
  ["gap", "Gap", "right"], ["seconds", "Time", "right cell-time"], ["created", "Started", "right cell-when"],
];
const runs = new Map(), data = new Map(), picked = new Set();
let shown = [], order = ["created", -1], comparison = null, focused = 0;

// --- the table -------------------------------------------------------------------------------------------------------

const score = (run) => run.accuracy ?? run.gap ?? run.value;
const KEYS = { gap: score, title: (run) => `${run.title} ${run.problem} ${run.settings}` };
const text = (run) => `${run.id} ${run.title} ${run.problem} ${run.settings} ${run.status}`.toLowerCase();

function sift() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [key, sign] = order, of = KEYS[key] ?? ((run) => run[key]);
  const wanted = ["status", "algorithm", "problem"].map((name) => [name, $(name).value]).filter(([, value]) => value);
  shown = [...runs.values()].filter((run) => wanted.every(([name, value]) => run[name] === value) && words.every((word) => text(run).includes(word)));
  shown.sort((a, b) => {
    const x = of(a), y = of(b);
    if (x === y) return a.id < b.id ? 1 : -1;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return x < y ? -sign : sign;
  });
  $("sheet").style.height = `${shown.length * HEIGHT}px`;
  focused = Math.min(focused, Math.max(shown.length - 1, 0));
  empty();
  paint();
}

const lines = new Map();

const paint = oncePerFrame(() => {
  const port = $("viewport"), first = Math.max(0, Math.floor(port.scrollTop / HEIGHT) - SPARE);
  const last = Math.min(shown.length, Math.ceil((port.scrollTop + port.clientHeight) / HEIGHT) + SPARE);
  const there = new Set();
  for (let k = first; k < last; k++) {
    const run = shown[k];
    there.add(run.id);
    let line = lines.get(run.id);
    if (!line) {
      line = { run, element: row(run) };
      $("sheet").append(line.element);
      lines.set(run.id, line);
    } else if (line.run !== run) {
      line.run = run;
      revise(line.element, row(run));
    }
    const element = line.element;
    element.style.transform = `translateY(${k * HEIGHT}px)`;
    element.dataset.k = k;
    element.setAttribute("aria-rowindex", k + 1);
    element.setAttribute("aria-selected", picked.has(run.id));
    element.tabIndex = k === focused ? 0 : -1;
    element.querySelector("input").checked = picked.has(run.id);
  }
  for (const [id, line] of lines) if (!there.has(id)) { line.element.remove(); lines.delete(id); }
  count();
});

/** Make an element say what another one says. It stays itself: a click that began on it ends on it. */
function revise(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.childNodes.length !== fresh.childNodes.length) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { old.data = fresh.data; return; }
  for (const { name, value } of fresh.attributes) {
    if (name === "style") old.style.cssText = value; else old.setAttribute(name, value);
  }
  [...fresh.childNodes].forEach((child, k) => revise(old.childNodes[k], child));
}

function row(run) {
  const done = run.rounds ? Math.min(1, run.round / run.rounds) : 0;
  const bar = h("i");
  bar.style.width = `${100 * done}%`;
  const dot = h("span", { className: "dot", "aria-hidden": "true" });
  dot.style.background = shade(run.colour);
  const name = run.status === "damaged" ? run.id : run.title;
  return h("div", { className: "columns line", role: "row", "data-id": run.id },
    h("input", { type: "checkbox", tabIndex: -1, "aria-label": `Select ${run.id}` }),
    h("span", { className: "name" },
      h("span", {}, dot, h("a", { href: `/run?id=${encoded(run.id)}`, tabIndex: -1, title: run.id }, name, h("span", {}, run.problem ? `  ${run.problem}` : ""))),
      h("small", { title: run.settings || run.reason }, run.settings || run.reason)),
    status(run.status),
    h("span", { className: "rounds number" }, h("span", {}, `${run.round} / ${run.rounds}`), h("span", { className: "progress" }, bar)),
    h("span", { className: "number right", title: run.accuracy !== null ? "test accuracy" : run.gap !== null ? "f(w) − f*" : "f(w)" }, number(score(run)) || "–"),
    h("span", { className: "number right cell-time" }, duration(run.seconds)),
    h("span", { className: "right when" }, ago(run.created)));
}

function count() {
  const all = runs.size, words = shown.length === all ? `${all.toLocaleString("en")} ${all === 1 ? "run" : "runs"}` : `${shown.length.toLocaleString("en")} of ${all.toLocaleString("en")} runs`;
  $("count").textContent = picked.size ? `${words}, ${picked.size} selected` : words;
  $("clear").hidden = !picked.size;
}

function heads() {
  const all = h("input", { type: "checkbox", "aria-label": "Select every run that is listed", onchange: (event) => {
    if (event.target.checked) {
      for (const run of shown.slice(0, MOST)) picked.add(run.id);
      if (shown.length > MOST) tell(`The first ${MOST} runs are selected`);
    } else picked.clear();
    chosen();
  } });
  $("heads").replaceChildren(all, ...COLUMNS.map(([key, words, kind]) => {
    const now = order[0] === key, turn = order[1] > 0 ? "up" : "down";
    return h("span", { className: kind, role: "columnheader", "aria-sort": now ? (turn === "up" ? "ascending" : "descending") : "none" },
      h("button", { type: "button", "data-order": now ? turn : null, onclick: () => {
        order = [key, now ? -order[1] : key === "created" || key === "round" ? -1 : 1];
        heads(); sift();
      } }, words));
  }));
}

function choices() {
  for (const name of ["status", "algorithm", "problem"]) {
    const select = $(name), value = select.value;
    const there = [...new Set([...runs.values()].map((run) => run[name]).filter(Boolean))].sort();
    if (there.join("\n") === [...select.options].slice(1).map((o) => o.value).join("\n")) continue;
    select.replaceChildren(select.options[0], ...there.map((word) => h("option", { value: word }, word)));
    select.value = there.includes(value) ? value : "";
  }
}

function toggle(id) {
  if (!picked.delete(id)) picked.add(id);
  chosen();
}

$("sheet").addEventListener("click", (event) => {
  const line = event.target.closest(".line");
  if (!line || event.target.closest("a")) return;
  focused = Number(line.dataset.k);
  line.focus({ preventScroll: true });
  toggle(line.dataset.id);
});
$("viewport").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity }[event.key];
  const line = event.target.closest(".line");
  if (step !== undefined) {
    event.preventDefault();
    focused = Math.max(0, Math.min(shown.length - 1, focused + step));
    const port = $("viewport"), top = focused * HEIGHT;
    if (top < port.scrollTop) port.scrollTop = top;
    if (top + HEIGHT > port.scrollTop + port.clientHeight) port.scrollTop = top + HEIGHT - port.clientHeight;
    paint();
    requestAnimationFrame(() => requestAnimationFrame(() => lines.get(shown[focused]?.id)?.element.focus({ preventScroll: true })));
  } else if (line && event.key === " ") {
    event.preventDefault();
    toggle(line.dataset.id);
  } else if (line && event.key === "Enter") location.href = `/run?id=${encoded(line.dataset.id)}`;
});
$("viewport").addEventListener("scroll", paint, { passive: true });
addEventListener("resize", paint);
onTheme(() => { lines.clear(); $("sheet").replaceChildren(); paint(); differences(); });
for (const id of ["search", "status", "algorithm", "problem"]) $(id).addEventListener("input", () => { $("viewport").scrollTop = 0; sift(); });
$("clear").addEventListener("click", () => { picked.clear(); chosen(); });

// --- curves ----------------------------------------------------------------------------------------------------------

const NOT_Y = new Set(["round", "seconds", "bytes", "bytes_up", "bytes_down", "clock"]);

function chosen() {
  paint();
  remember();
  $("nothing").hidden = picked.size > 0;
  $("axes").classList.toggle("idle", !picked.size);
  $("chart").style.visibility = picked.size ? "visible" : "hidden";
  if (!picked.size) { comparison = null; differences(); }
  return compare();
}

const compare = inTurn(async () => {
  if (!picked.size) return;
  const wanted = [...picked].filter((id) => runs.get(id)?.status !== "damaged").slice(0, 200);
  try {
    const [made] = await Promise.all([api("compare", { body: { runs: wanted } }), ...wanted.map((id) => fill(id).catch((error) => tell(error.message, true)))]);
    if (!made.runs.every((id) => picked.has(id))) return; // the next answer is that of the runs which are selected now
    comparison = made;
    if (made.damage.length) tell(made.damage[0], true);
  } catch (error) { tell(error.message, true); return; }
  axes();
  redraw();
});

/** Fetch the rows of a run that are not here yet. */
function fill(id) {
  if (!data.has(id)) data.set(id, new Metrics(id));
  return data.get(id).update();
}

function axes() {
  const known = [...picked].map((id) => data.get(id)?.columns ?? {});
  const names = new Set(known.flatMap((columns) => Object.keys(columns).filter((name) => !NOT_Y.has(name) && columns[name].some((v) => v !== null))));
  const first = ["gap", "value", "residual", "consensus", "stationarity", "test_accuracy"].filter((name) => names.delete(name));
  options($("y"), [...first, ...names], YS, wish.y ?? first[0]);
  options($("x"), ["round", "seconds", "bytes", ...(known.some((c) => c.clock) ? ["clock"] : [])], XS, wish.x ?? "round");
}

const TITLES = { gap: "gap", value: "loss", test_accuracy: "test accuracy", bytes: "bytes", clock: "simulated seconds" };

function options(select, names, words, value) {
  if (names.join() !== [...select.options].map((o) => o.value).join()) {
    const now = select.value;
    select.replaceChildren(...names.map((name) => h("option", { value: name }, TITLES[name] ?? name.replaceAll("_", " "))));
    select.value = names.includes(now) ? now : names.includes(value) ? value : names[0];
  }
}

const middle = (values) => {
  const sorted = values.filter((v) => v !== null && v !== undefined).sort((a, b) => a - b), n = sorted.length;
  return n ? (n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2) : null;
};

/** One curve: the run itself, or the median, least and most of its seeds at the rounds that all of them have. */
function curve(made, x, y) {
  const all = made.runs.map((id) => data.get(id)?.columns).filter((columns) => columns?.round?.length && columns[y] && columns[x]);
  if (!all.length) return null;
  const line = { label: made.label, colour: made.colour, dash: made.dash };
  if (all.length === 1) return { ...line, x: all[0][x], y: all[0][y] };
  const places = all.map((columns) => new Map(columns.round.map((n, k) => [n, k])));
  const common = all[0].round.filter((n) => places.every((place) => place.has(n)));
  const at = common.map((n) => places.map((place, k) => [all[k], place.get(n)]));
  const ys = at.map((those) => those.map(([columns, k]) => columns[y][k]).filter((v) => v !== null));
  return { ...line, x: at.map((those) => those.reduce((sum, [columns, k]) => sum + columns[x][k], 0) / those.length),
    y: ys.map(middle), low: ys.map((v) => (v.length ? Math.min(...v) : null)), high: ys.map((v) => (v.length ? Math.max(...v) : null)) };
}

const scale = () => document.querySelector("input[name=scale]:checked").value;

const redraw = oncePerFrame(() => {
  if (!comparison || !picked.size) return;
  const x = $("x").value, y = $("y").value;
  const made = comparison.curves.map((each) => curve(each, x, y)).filter(Boolean);
  const log = scale() === "log" && positive(made.map((line) => line.y));
  draw($("chart"), made, { x, y, log, legend: made.length > 1 && made.length <= MOST_IN_LEGEND });
  const link = (kind) => `/api/download/${kind}?x=${x === "clock" ? "round" : x}&y=${y}&${[...picked].map((id) => `run=${encoded(id)}`).join("&")}`;
  $("downloads").lastElementChild.replaceChildren(...[["csv", "CSV"], ["parquet", "Parquet"], ["png", "PNG picture"], ["svg", "SVG picture"], ["html", "HTML report"]]
    .map(([kind, words]) => h("a", { href: link(kind), download: `resolvent-runs.${kind}` }, words)));
  differences();
});

function differences() {
  const place = $("differences");
  $("downloads").hidden = !comparison;
  if (!comparison) { place.replaceChildren(); return; }
  const columns = comparison.different, at = new Map(comparison.runs.map((id, k) => [id, k]));
  const rows = comparison.curves.flatMap((made) => made.runs.map((id) => {
    const swatch = h("span", { className: "swatch", "data-dash": made.dash });
    swatch.style.borderColor = shade(made.colour);
    return h("tr", {}, h("td", {}, swatch, h("a", { href: `/run?id=${encoded(id)}`, title: id }, made.runs.length > 1 ? `${made.label}, seed ${runs.get(id)?.seed}` : made.label)),
      columns.map((each) => {
        const value = each.values[at.get(id)];
        return h("td", {}, value === null ? h("span", { className: "faint" }, "–") : h("mark", {}, typeof value === "number" ? number(value, 4) : String(value)));
      }), h("td", { className: "number" }, number(score(runs.get(id) ?? {}))));
  }));
  const table = h("table", { className: "differences" },
    h("thead", {}, h("tr", {}, h("th", {}, "Curve"), columns.map((each) => h("th", {}, each.key.replace(/^(scheme|run)\./, ""))), h("th", {}, "Final"))),
    h("tbody", {}, rows));
  if (place.firstChild) revise(place.firstChild, table); else place.append(table);
}

for (const id of ["x", "y"]) $(id).addEventListener("change", () => { wish[id] = $(id).value; remember(); redraw(); });
for (const radio of document.querySelectorAll("input[name=scale]")) radio.addEventListener("change", redraw);

// --- what is remembered, and what changes ----------------------------------------------------------------------------

const wish = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

function remember() {
  const told = new URLSearchParams();
  if (picked.size && picked.size <= 20) told.set("runs", [...picked].join(","));
  for (const id of ["x", "y"]) if (wish[id]) told.set(id, wish[id]);
  history.replaceState(null, "", `${location.pathname}${String(told) ? `#${told}` : ""}`);
}

function empty() {
  $("viewport").querySelector(".empty")?.remove();
  if (shown.length || folder === null) return;
  $("viewport").append(runs.size ? h("div", { className: "empty" }, h("h2", {}, "No run matches the search")) : h("div", { className: "empty" }, h("h2", {}, `No runs in ${folder}/ yet`),
    h("p", {}, "Start one with the button above, or in a terminal:"), h("code", {}, "resolvent run least-squares --rounds 200")));
}

let folder = null; // until all runs were asked for
const wished = (wish.runs ?? "").split(",");
const newer = new Set(); // the runs that events have told of since all were asked for: the answer may be older

const everything = inTurn(async () => {
  newer.clear();
  const told = await api("runs"), there = new Set(told.runs.map((run) => run.id));
  folder = told.folder;
  for (const id of [...runs.keys()]) if (!there.has(id) && !newer.has(id)) runs.delete(id);
  for (const run of told.runs) if (!newer.has(run.id)) runs.set(run.id, run);
  for (const id of wished.splice(0)) if (runs.has(id)) picked.add(id);
  for (const id of picked) if (!runs.has(id)) picked.delete(id);
  choices(); sift();
  chosen();
});

let waiting = new Set();

async function follow() {
  const those = [...waiting];
  waiting = new Set();
  await Promise.allSettled(those.map(fill)); // one that was deleted does not hold up the others
  axes();
  redraw();
}

const following = oncePerFrame(follow);
const attempt = (work) => work().catch((error) => tell(error.message, true));

live({
  hello: () => {
    const before = jobs;
    attempt(everything);
    attempt(async () => { const now = await api("jobs"); if (jobs === before) attend(now); });
  },
  again: () => attempt(everything),
  runs: ({ changed, gone }) => {
    for (const run of changed) {
      newer.add(run.id);
      runs.set(run.id, run);
      if (picked.has(run.id)) waiting.add(run.id);
    }
    let fewer = false;
    for (const id of gone) { newer.add(id); runs.delete(id); data.delete(id); fewer = picked.delete(id) || fewer; }
    choices(); sift();
    if (fewer) chosen();
    if (waiting.size) following();
  },
  jobs: (jobs) => attend(jobs),
});

const started = new Set(), told = new Set();
let jobs = null;

/** Say which jobs have failed, and select the runs of those that were started here; events may tell of a job before the
 *  request that starts it is answered. */
function attend(now) {
  for (const job of now) {
    if (job.status === "failed" && !told.has(job.id)) { told.add(job.id); if (jobs) tell(job.words, true); }
    if (job.run && started.delete(job.id)) { picked.add(job.run); chosen(); }
  }
  jobs = now;
}

$("new").addEventListener("click", () => openForm((job) => {
  started.add(job.id);
  if (!told.has(job.id)) tell("Starting; the run appears once its problem is made");
  attend(jobs ?? []);
}));

heads();
setTimeout(plotly, 1200); // so that the first selection need not wait for it
setInterval(() => { for (const [, line] of lines) line.element.querySelector(".when").textContent = ago(line.run.created); }, 30000);
