// The form of a new run, made from the typed configuration.

import { $, api, h } from "./shared.js";

let form = null;
const named = {}; // what each section names, by its name

/** Ask for a configuration and start it; the job is handed to `then`. */
export async function openForm(then) {
  form ??= await api("form");
  fill();
  $("refused").textContent = "";
  $("start").showModal();
  $("form").onsubmit = async (event) => {
    event.preventDefault();
    const button = event.submitter;
    if (button?.disabled) return;
    if (button) button.disabled = true; // a second click would start a second run
    try {
      const job = await api("runs", { body: { config: values() } });
      $("start").close();
      then(job);
    } catch (error) { $("refused").textContent = error.message; }
    if (button) button.disabled = false;
  };
}

$("cancel")?.addEventListener("click", () => $("start").close());

function fill() {
  $("fields").replaceChildren(...form.sections.map(section));
}

/** A section's fields; where it names one of several parts, those of the part that is named. */
function section({ name, by, usual, parts }) {
  const part = parts.find((each) => each.name === (named[name] ?? usual)) ?? parts[0];
  const first = part.fields.filter((field) => field.first).map((field) => ask(name, field));
  const more = part.fields.filter((field) => !field.first).map((field) => ask(name, field));
  if (by) first.unshift(choice(name, by, usual, part, parts));
  return h("fieldset", {}, h("legend", {}, name),
    first.length ? h("div", { className: "grid" }, first) : null,
    more.length ? h("details", {}, h("summary", {}, first.length ? "More" : "Settings"), h("div", { className: "grid" }, more)) : null);
}

function choice(section, by, usual, part, parts) {
  const name = `${section}.${by}`;
  const select = h("select", { name, "data-default": by === "kind" ? usual : "" }, parts.map((each) => h("option", { value: each.name }, each.name)));
  select.value = part.name;
  select.addEventListener("change", () => { named[section] = select.value; fill(); $("fields").querySelector(`[name='${name}']`).focus(); });
  return h("label", { className: "ask" }, h("span", {}, by), select, h("small", {}, part.words));
}

function ask(section, field) {
  const name = `${section}.${field.key}`, words = h("small", {}, field.words);
  const label = h("span", {}, field.key.replaceAll("_", " "));
  const given = field.default === null ? "" : String(field.default);
  if (field.types.includes("bool")) {
    return h("label", { className: "ask inline" }, h("input", { type: "checkbox", name, checked: field.default || null, "data-default": given }), h("span", {}, label, " ", words));
  }
  if (field.choices.length && !field.types.length) {
    const none = field.optional ? [h("option", { value: "" }, "–")] : [];
    const select = h("select", { name, "data-default": given }, none, field.choices.map((word) => h("option", { value: word }, word)));
    select.value = given;
    return h("label", { className: "ask" }, label, select, words);
  }
  const placeholder = field.optional ? (field.choices.length ? `a number or ${field.choices.join(", ")}` : "not set") : "";
  return h("label", { className: "ask" }, label, h("input", {
    type: "text", name, value: given, placeholder, inputMode: field.types.includes("str") ? "text" : "decimal", autocomplete: "off", spellcheck: false,
    "data-default": given, "data-types": field.types.join(" "), "data-choices": field.choices.join(" "),
  }), words);
}

/** What differs from the defaults, as sections of plain values. */
function values() {
  const tree = {};
  for (const field of $("fields").querySelectorAll("[name]")) {
    const [section, key] = field.name.split(".");
    const text = field.type === "checkbox" ? String(field.checked) : field.value.trim();
    const given = field.dataset.default || (field.type === "checkbox" ? "false" : "");
    if (text === given || text === "") continue;
    let value = text;
    if (field.type === "checkbox") value = field.checked;
    else if (/\b(int|float)\b/.test(field.dataset.types ?? "") && !(field.dataset.choices ?? "").split(" ").includes(text) && Number.isFinite(Number(text))) value = Number(text);
    (tree[section] ??= {})[key] = value;
  }
  return tree;
}
