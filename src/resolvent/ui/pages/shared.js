// What every page needs: elements, requests, live events, numbers in words, the theme.
// Text from runs reaches the page through textContent alone, so that markup in it is shown and never read.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-") && typeof value !== "boolean") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

/** Ask the server; what it refuses is thrown as the sentence that it gave. */
export async function api(path, { body, signal } = {}) {
  const options = { signal, headers: {} };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(`/api/${path}`, options);
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let words = text;
  try { words = JSON.parse(text).detail ?? text; } catch { /* a plain sentence */ }
  throw Object.assign(new Error(words || `the server answered ${answer.status}`), { status: answer.status });
}

export const encoded = (id) => encodeURIComponent(id);

/** An asynchronous function, one call at a time: what is asked for during a call is done once, after it. So answers come in
 *  the order of their questions, and the last one is to the last question. */
export function inTurn(work) {
  let under = Promise.resolve(), next = null;
  return () => (next ??= under.catch(() => {}).then(() => {
    next = null;
    return (under = work());
  }));
}

/** The rows of a run's metrics, as columns that grow. */
export class Metrics {
  columns = {};
  #rows = 0;
  #edition = "";

  constructor(id) { this.id = id; }

  /** Fetch what is not here yet. Two requests that begin at the same row would both append what follows it. */
  update = inTurn(() => this.#fetch());

  async #fetch() {
    const more = await api(`runs/${encoded(this.id)}/metrics?after=${this.#rows}&edition=${this.#edition}`);
    if (more.start === 0) this.columns = more.columns;
    else if (more.rows > this.#rows) { // as new arrays: Plotly takes those it knows for unchanged
      this.columns = Object.fromEntries(Object.entries(more.columns).map(([name, values]) => [name, [...(this.columns[name] ?? []), ...values]]));
    }
    this.#rows = more.rows;
    this.#edition = more.edition;
  }
}

/** Live events: handlers by name. What changes is told from the hello on, so whoever asks for the state after it misses nothing;
 *  a further hello means that events were missed. The dot in the header says whether they arrive. */
export function live(handlers) {
  const source = new EventSource("/api/stream");
  const dot = $("live");
  const say = (state, words) => {
    if (!dot) return;
    dot.dataset.state = state;
    dot.title = words;
    dot.setAttribute("aria-label", words);
  };
  source.addEventListener("hello", () => { say("on", "Live: changes appear as they happen"); handlers.hello?.(); });
  source.addEventListener("error", () => say("off", source.readyState === EventSource.CLOSED ? "The server refuses to answer; open the page anew" : "The server does not answer; trying again"));
  for (const [name, handle] of Object.entries(handlers)) {
    if (name !== "hello") source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  addEventListener("pagehide", () => source.close());
  return source;
}

/** Call a function once per frame, however often it is asked for. */
export function oncePerFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; work(); });
  };
}

const SMALL = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const raised = (n) => (n < 0 ? "⁻" : "") + [...String(Math.abs(n))].map((d) => SMALL[d]).join("");

/** A number as one reads it: 0.0123, 1.23·10⁻⁹. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits)));
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return `${mantissa}·10${raised(Number(exponent))}`;
}

/** Seconds as one says them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 0.0995) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 59.5) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 3570) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Number((seconds / 3600).toPrecision(2))} h`;
  return `${Number((seconds / 86400).toPrecision(2))} days`;
}

/** How long ago a moment was. */
export function ago(moment) {
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "just now";
  if (seconds < 86400 * 14) return `${duration(seconds)} ago`;
  return moment.slice(0, 10);
}

export const STATUS = {
  running: "running", finished: "finished", stopped: "stopped", diverged: "diverged",
  interrupted: "interrupted", failed: "failed", killed: "killed", damaged: "damaged",
};

/** A run's status, as a dot and a word. */
export const status = (name) => h("span", { className: "status", "data-status": name }, h("i", { "aria-hidden": "true" }), name);

let fading;

/** A short message at the foot of the page. */
export function tell(words, bad = false) {
  const place = $("told") ?? document.body.appendChild(h("div", { id: "told", role: "status", "aria-live": "polite" }));
  place.textContent = words;
  place.className = bad ? "shown bad" : "shown";
  clearTimeout(fading);
  fading = setTimeout(() => { place.className = ""; }, bad ? 12000 : 4000);
}

/** Put text on the clipboard, and say so. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // without a secure context there is no clipboard
    const area = h("textarea", { className: "offscreen", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  tell(`${what} copied`);
}

/** What the style sheet says of a colour. */
export const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const isDark = () => style("--scheme") === "dark";

/** Colours are those of reports; on a dark ground a little lighter, so that they are as easy to see. */
export function shade(colour) {
  if (!isDark()) return colour;
  const channels = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  return "#" + channels.map((c) => Math.round(c + 0.22 * (255 - c)).toString(16).padStart(2, "0")).join("");
}

const themed = new Set();

/** Call a function whenever the theme changes. */
export const onTheme = (work) => themed.add(work);

function turn() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  for (const work of themed) work();
}

$("theme")?.addEventListener("click", turn);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const work of themed) work(); });
