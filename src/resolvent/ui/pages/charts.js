// Curves by Plotly, which is loaded when the first one is drawn.

import { h, number, onTheme, shade, style } from "./shared.js";

let loading;

/** Plotly, from this server. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/plotly.min.js", onload: () => resolve(window.Plotly), onerror: () => { loading = undefined; reject(new Error("the server does not answer")); } });
    document.head.append(script);
  });
  return loading;
}

const verbatim = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;"); // Plotly reads tags

export const XS = { round: "round", seconds: "seconds", bytes: "bytes communicated", clock: "simulated seconds" };
export const YS = { gap: "f(w) − f*", value: "f(w)", test_accuracy: "test accuracy", eta: "η" };

const drawn = new Map();

/** Plotly follows the window's size; a chart's own may change without it, when a neighbour grows. */
const watched = new ResizeObserver((entries) => { for (const { target } of entries) if (target.clientWidth && target.data) window.Plotly.Plots.resize(target); });


/** Draw lines: {x, y, label, colour, dash, low, high, width}. Options: x, y (names), log, logx, legend, marks. */
export async function draw(element, lines, options) {
  drawn.set(element, [lines, options]);
  const Plotly = await plotly();
  if (drawn.get(element)?.[0] !== lines) return; // something newer waits
  const ends = options.log ? bounds(lines) : null, log = Boolean(ends) && ends[1] > 2 * ends[0];
  await Plotly.react(element, traces(lines, log), layout({ ...options, log, ends, level: level(lines) }), {
    displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset",
  });
  watched.observe(element);
  element.dataset.drawn = String(Number(element.dataset.drawn ?? 0) + 1);
}

onTheme(() => { for (const [element, [lines, options]] of drawn) if (element.isConnected) draw(element, [...lines], options); });

function traces(lines, log) {
  const shown = (values) => (log ? values.map((v) => (v > 0 ? v : null)) : values);
  const made = [];
  lines.forEach((line, k) => {
    const colour = shade(line.colour);
    if (line.low) {
      const band = { mode: "lines", line: { width: 0 }, legendgroup: `g${k}`, showlegend: false, hoverinfo: "skip" };
      made.push({ ...band, x: line.x, y: shown(line.low) });
      made.push({ ...band, x: line.x, y: shown(line.high), fill: "tonexty", fillcolor: `${colour}2e` });
    }
    made.push({
      x: line.x, y: shown(line.y), name: verbatim(line.label), mode: line.x.length === 1 ? "markers" : "lines",
      legendgroup: `g${k}`, hovertemplate: "%{y:.3~g}", line: { color: colour, dash: line.dash ?? "solid", width: line.width ?? 2 },
      marker: { color: colour },
    });
  });
  return made;
}

/** The least and the most of what is positive. */
function bounds(lines) {
  let least = Infinity, most = 0;
  for (const line of lines) for (const values of [line.y, line.low ?? [], line.high ?? []]) for (const v of values) if (v > 0) { least = Math.min(least, v); most = Math.max(most, v); }
  return most > 0 ? [least, most] : [1, 10];
}

/** The value of lines that are all level; else null. Plotly would show one that is small as zero. */
function level(lines) {
  let first = null;
  for (const line of lines) for (const values of [line.y, line.low ?? [], line.high ?? []]) for (const v of values) {
    if (v === null || v === undefined) continue;
    first ??= v;
    if (v !== first) return null;
  }
  return first;
}

function layout({ x, y, log, ends, level, logx, legend, marks = [], range }) {
  const ink = style("--ink"), faint = style("--faint"), line = style("--line");
  const axis = { gridcolor: line, zeroline: false, linecolor: line, tickfont: { color: faint, size: 12 }, showline: true };
  const title = (text) => ({ text, standoff: 8, font: { size: 12.5, color: faint } });
  return {
    xaxis: { ...axis, title: title(XS[x] ?? x), type: logx ? "log" : "linear", showgrid: false, ...(range ? { range } : {}) },
    yaxis: { ...axis, title: title(verbatim(YS[y] ?? y)), type: log ? "log" : "linear", exponentformat: "power", automargin: true, ...ticks(log, ends, faint),
      ...(level ? { range: [Math.min(0, 2 * level), Math.max(0, 2 * level)] } : {}) },
    font: { family: style("--sans"), color: ink, size: 13 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 64, r: 14, t: 10, b: 46 }, hovermode: "x unified",
    hoverlabel: { bgcolor: style("--panel"), bordercolor: line, font: { color: ink, size: 12.5 } },
    showlegend: Boolean(legend), legend: { orientation: "h", y: -0.22, x: 0, font: { size: 12 } },
    uirevision: `${x} ${y} ${log} ${logx}`,
    shapes: marks.filter((m) => Number.isFinite(m.y) && (!log || m.y > 0)).map((m) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: m.y, y1: m.y, line: { color: m.colour ?? faint, width: 1.3, dash: "dot" },
    })),
    annotations: marks.filter((m) => Number.isFinite(m.y) && (!log || m.y > 0)).map((m) => ({
      xref: "paper", x: 1, xanchor: "right", y: log ? Math.log10(m.y) : m.y, yanchor: "bottom", showarrow: false,
      text: verbatim(m.label), font: { size: 12, color: m.colour ?? faint },
    })),
  };
}

/** Powers of ten, as many as fit; where there are few, 1, 2 and 5 of each. Plotly sets powers larger than it is told. */
function ticks(log, ends, colour) {
  if (!log) return { nticks: 6 };
  const [low, high] = ends.map(Math.log10), spread = high - low;
  if (spread > 2) return { dtick: Math.ceil(spread / 6), tickfont: { color: colour, size: 10.5 } };
  const values = [];
  for (let k = Math.floor(low) - 1; k <= high + 1; k++) for (const digit of [1, 2, 5]) values.push(digit * 10 ** k);
  return { tickvals: values, ticktext: values.map((v) => number(v)) };
}

/** Whether a logarithmic axis shows all that there is, but for round-off below zero. */
export function positive(series) {
  let least = Infinity, most = -Infinity;
  for (const values of series) {
    for (const v of values) {
      if (v === null || v === undefined) continue;
      if (v < least) least = v;
      if (v > most) most = v;
    }
  }
  return most > 0 && least >= -1e-9 * most;
}
