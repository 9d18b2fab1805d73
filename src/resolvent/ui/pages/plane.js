// The plane, round by round: users' level sets, prox, reflection and projection drawn as in the paper's figure 1.

import { s, shade, style } from "./shared.js";

const WIDTH = 640, HEIGHT = 480, UNIT = 100, LEFT = -1.2, TOP = 3.6;
const LEVELS = [0.04, 0.16, 0.4, 0.85, 1.6, 2.8, 4.6];
export const COLOURS = ["#0072B2", "#E69F00", "#009E73"];
const SUB = "₁₂₃";

const X = (x) => Math.max(-2000, Math.min(2600, (x - LEFT) * UNIT));
const Y = (y) => Math.max(-2000, Math.min(2600, (TOP - y) * UNIT));
const at = ([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`;
const mid = (a, b, t = 0.5) => [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])];
const finite = (point) => point.every((v) => v !== null && Number.isFinite(v));

/** The parts of a round that differ from each other: [name, words]. */
export function phases(setup, operator) {
  const local = ["local", operator ?? (!setup.forward ? "prox" : setup.steps > 1 ? `${setup.steps} gradient steps` : "gradient step")];
  const relax = setup.alpha === 1 ? [] : [["relax", setup.alpha === 2 ? "reflect" : "relax"]];
  return [local, ...relax, ["meet", setup.beta === 2 ? "reflect on the mean" : "meet at the mean"], ["move", "move on"]];
}

/** Whether two users on a line are shown as one point of the plane. */
const isProduct = (told) => told.users[0]?.kind === "axis";

/** The path as points of the plane: per round, per shown path, u, p, z, the mean of z, the foot on it, and next. */
function points(told, setup) {
  if (!isProduct(told)) {
    return told.path.map((step) => told.users.map((_, i) => ({ u: step.u[i], p: step.p[i], z: step.z[i], foot: step.mean, next: step.next[i], came: step.who.includes(i) })));
  }
  const pair = (rows) => [rows[0][0], rows[1][0]];
  return told.path.map((step) => {
    const foot = [step.mean[0], step.mean[0]], z = pair(step.z);
    return [{ u: pair(step.u), p: pair(step.p), z, foot, w: mid(z, foot, setup.beta), next: pair(step.next), came: step.who.length > 0 }];
  });
}

/** Draw round t up to a phase, over the whole path drawn faintly. */
export function drawPlane(svg, told, setup, t, phase, colour) {
  const product = isProduct(told), ink = style("--ink");
  const colours = (product ? [colour] : COLOURS).map(shade);
  const path = points(told, setup).filter((step) => step.every((own) => finite(own.u) && finite(own.p)));
  const made = [markers(colours, ink), ...grounds(told, product)];
  if (path.length) {
    const step = path[Math.min(t, path.length - 1)];
    path[0].forEach((_, i) => made.push(s("polyline", { class: "trail", stroke: colours[i], points: path.map((each) => at(each[i].u)).join(" ") })));
    if (!product) made.push(s("polyline", { class: "mean", opacity: 0.75, points: path.map((each) => at(each[0].foot)).join(" ") }));
    step.forEach((own, i) => made.push(...round(own, i, product, setup, phase, colours[i])));
    if (phase !== "local" && phase !== "relax") made.push(...meeting(step, product, ink, setup));
  }
  made.push(...targets(told, product));
  svg.replaceChildren(...made);
  part(svg);
}

/** Move each label off those before it: to the other sides of its point, then farther out; one without room is left out. */
function part(svg) {
  const placed = [];
  for (const text of [...svg.querySelectorAll("text.label"), ...svg.querySelectorAll("text:not(.label)")]) {
    const own = [Number(text.getAttribute("x")), Number(text.getAttribute("y"))], box = text.getBBox();
    const free = ([dx, dy]) => placed.every((b) => box.x + dx >= b.x + b.width || b.x >= box.x + dx + box.width || box.y + dy >= b.y + b.height || b.y >= box.y + dy + box.height);
    const [w, h] = [box.width + 16, box.height], step = [0, 1, 2, 3].flatMap((n) => [[0, -n * h], [0, n * h], [-w, -n * h], [-w, n * h]]).find(free);
    if (!step) { text.remove(); continue; }
    text.setAttribute("x", own[0] + step[0]);
    text.setAttribute("y", own[1] + step[1]);
    placed.push(text.getBBox());
  }
}

function markers(colours, ink) {
  const arrow = (id, fill) => s("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" }, s("path", { d: "M0 0.6 8 4 0 7.4z", fill }));
  return s("defs", {}, [...colours, ink].map((fill, k) => arrow(`arrow${k}`, fill)));
}

function grounds(told, product) {
  if (product) {
    const [a, b] = told.users, centre = [a.centre[0], b.centre[0]];
    const rings = LEVELS.map((level) => s("ellipse", { class: "level", stroke: style("--faint"), cx: X(centre[0]), cy: Y(centre[1]), rx: UNIT * Math.sqrt((4 * level) / a.curvature), ry: UNIT * Math.sqrt((4 * level) / b.curvature) }));
    const end = [LEFT + WIDTH / UNIT, LEFT + WIDTH / UNIT], h = mid([0, 0], [3.25, 3.25], 1);
    return [...rings, s("line", { class: "diagonal", x1: X(LEFT), y1: Y(LEFT), x2: X(end[0]), y2: Y(end[1]) }),
      s("text", { x: X(h[0]) + 8, y: Y(h[1]) + 16 }, "H: u₁ = u₂"),
      s("text", { x: WIDTH - 22, y: HEIGHT - 10 }, "u₁"), s("text", { x: 10, y: 20 }, "u₂")];
  }
  return told.users.flatMap((user, i) => ({ bowl, ball, halfspace })[user.kind](user, shade(COLOURS[i]), i));
}

function bowl(user, colour, i) {
  const [[a, b], [, d]] = user.hessian, [cx, cy] = user.centre;
  const mean = (a + d) / 2, split = Math.hypot((a - d) / 2, b), large = mean + split, small = mean - split;
  const angle = Math.abs(b) < 1e-12 && a >= d ? 0 : Math.atan2(large - a, b);
  return [...LEVELS.map((level) => s("ellipse", { class: "level", stroke: colour, cx: X(cx), cy: Y(cy), rx: UNIT * Math.sqrt((2 * level) / large), ry: UNIT * Math.sqrt((2 * level) / small), transform: `rotate(${(-angle * 180) / Math.PI} ${X(cx)} ${Y(cy)})` })),
    s("circle", { cx: X(cx), cy: Y(cy), r: 2.5, fill: colour }), s("text", { x: X(cx) + 7, y: Y(cy) + 16 }, `f${SUB[i]}`)];
}

function ball(user, colour) {
  const place = { cx: X(user.centre[0]), cy: Y(user.centre[1]), r: UNIT * user.radius };
  return [s("circle", { class: "region", fill: colour, ...place }), s("circle", { class: "rim", stroke: colour, ...place }), s("text", { x: place.cx + 0.38 * place.r, y: place.cy - 0.55 * place.r }, "C₁")];
}

function halfspace(user, colour) {
  const [a, b] = user.normal, foot = [a * user.offset, b * user.offset], far = 20;
  const ends = [[foot[0] - far * b, foot[1] + far * a], [foot[0] + far * b, foot[1] - far * a]];
  const raw = ([x, y]) => `${(x - LEFT) * UNIT},${(TOP - y) * UNIT}`;
  const inner = ends.map(([x, y]) => [x - far * a, y - far * b]);
  const label = [foot[0] - 0.3 * a - 0.55 * Math.abs(b), foot[1] - 0.3 * b - 0.55 * a * Math.sign(-b)];
  return [s("polygon", { class: "region", fill: colour, points: [...ends, ...inner.reverse()].map(raw).join(" ") }), s("line", { class: "rim", stroke: colour, x1: X(ends[0][0]), y1: Y(ends[0][1]), x2: X(ends[1][0]), y2: Y(ends[1][1]) }), s("text", { x: X(label[0]), y: Y(label[1]) }, "C₂")];
}

const line = (kind, a, b, more = {}) => s("line", { class: kind, x1: X(a[0]), y1: Y(a[1]), x2: X(b[0]), y2: Y(b[1]), ...more });
const dot = (point, fill, r = 4, more = {}) => s("circle", { cx: X(point[0]), cy: Y(point[1]), r, fill, ...more });
const label = (point, words, dx = 9, dy = -8) => s("text", { class: "label", x: X(point[0]) + dx, y: Y(point[1]) + dy }, words);
const length = (a, b) => UNIT * Math.hypot(b[0] - a[0], b[1] - a[1]);

/** The short tangent at a foot, and the little square of the right angle. */
function perpendicular(from, foot, colour) {
  const far = length(from, foot);
  if (far < 16) return [];
  const e = [(foot[0] - from[0]) * (UNIT / far), (foot[1] - from[1]) * (UNIT / far)], n = [-e[1], e[0]];
  const put = (a, b) => [foot[0] + (a * e[0] + b * n[0]) / UNIT, foot[1] + (a * e[1] + b * n[1]) / UNIT];
  return [line("", put(0, -24), put(0, 24), { stroke: colour, "stroke-width": 1.5 }),
    s("polyline", { fill: "none", stroke: colour, "stroke-width": 1.1, points: [put(-7, 0), put(-7, 7), put(0, 7)].map(at).join(" ") })];
}

function round(own, i, product, setup, phase, colour) {
  const index = product ? "" : SUB[i], made = [];
  if (!own.came && !product) return [dot(own.u, "none", 4, { stroke: colour, "stroke-width": 1.6 }), label(own.u, `u${index} absent`)];
  const loud = length(own.u, own.p) > 14;
  made.push(line("prox", own.u, own.p, { stroke: colour, "marker-end": loud ? `url(#arrow${i})` : null }));
  if (!setup.forward) made.push(...perpendicular(own.u, own.p, colour));
  if (phase !== "local" && setup.alpha !== 1) {
    made.push(line("reflect", own.p, own.z, { stroke: colour, "marker-end": length(own.p, own.z) > 14 ? `url(#arrow${i})` : null }), dot(own.z, style("--ground"), 4, { stroke: colour, "stroke-width": 2 }));
    if (length(own.p, own.z) > 18) made.push(label(own.z, `z${index}`));
  }
  if (phase === "move") made.push(dot(own.next, colour, 3), line("go", own.u, own.next, { "marker-end": length(own.u, own.next) > 14 ? `url(#arrow${product ? 1 : COLOURS.length})` : null }));
  made.push(dot(own.u, colour, 4.6), dot(own.p, colour, 3.4));
  if (loud) made.push(label(own.p, `${setup.forward ? "G" : "P"} u${index}`, 9, 18));
  if (product || i === 0 || length(own.u, own.foot) > 26) made.push(label(own.u, `u${index}`, -10, -10));
  return made;
}

function meeting(step, product, ink, setup) {
  const made = [], { foot } = step[0];
  if (product) {
    const { z, w } = step[0];
    made.push(line("meet", z, foot, { stroke: ink }), ...perpendicular(z, foot, ink));
    if (setup.beta !== 1) made.push(line("meet", foot, w, { stroke: ink, "marker-end": length(foot, w) > 14 ? "url(#arrow1)" : null }), dot(w, style("--ground"), 4, { stroke: ink, "stroke-width": 1.8 }));
    if (setup.beta !== 1 && length(foot, w) > 22) made.push(label(w, "w"));
  } else for (const own of step) if (own.came) made.push(line("meet", own.z, foot, { stroke: ink }));
  made.push(s("rect", { x: X(foot[0]) - 4.5, y: Y(foot[1]) - 4.5, width: 9, height: 9, fill: ink, transform: `rotate(45 ${X(foot[0])} ${Y(foot[1])})` }), label(foot, product ? "mean on H" : "mean", 11, 5));
  return made;
}

function targets(told, product) {
  const as = (point) => (product ? [point[0], point[0]] : point), made = [];
  if (told.minimiser && finite(told.minimiser)) {
    const w = as(told.minimiser);
    made.push(s("circle", { class: "target", cx: X(w[0]), cy: Y(w[1]), r: 8.5 }), label(w, "w*", 11, -9));
  }
  if (told.point && finite(told.point)) {
    const p = as(told.point), apart = !told.minimiser || length(p, as(told.minimiser)) > 4;
    const x = X(p[0]), y = Y(p[1]);
    made.push(s("path", { class: "predicted", d: `M${x - 6} ${y - 6}l12 12M${x - 6} ${y + 6}l12 -12` }));
    if (apart) made.push(label(p, "predicted", 11, 17));
  }
  return made;
}
