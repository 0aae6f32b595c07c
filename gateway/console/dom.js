// Makes elements and words. Texts are only ever set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Replaces what is in an element, but only when it would change: so that selected text and focus stay.
const shown = new WeakMap();
export function show(parent, key, make) {
  const text = JSON.stringify(key);
  if (shown.get(parent) === text) return;
  shown.set(parent, text);
  parent.replaceChildren(...[make()].flat());
}

// A table that becomes a list of cards where it is narrow: each cell knows the name of its column.
export function table(caption, columns, rows) {
  const head = el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, column) =>
    el(column ? "td" : "th", { "data-name": columns[column], scope: column ? null : "row" },
      ...(Array.isArray(cell) ? cell : [cell])))));
  return el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, head), el("tbody", {}, body));
}

const NONE = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const number = (value, digits = 3) => known(value)
  ? value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(Math.abs(value) + 1))) })
  : NONE;
export const percent = (share) => known(share) ? `${number(share * 100)}%` : NONE;
export const rate = (value) => known(value) ? `${number(value)}/s` : NONE;
export const ms = (value) => known(value) ? `${number(value)} ms` : NONE;
export const words = (name) => name.replaceAll("_", " ");
export const signed = (value) => known(value) ? (value > 0 ? "+" : "") + number(value) : NONE;

export function moment(text) {
  const at = new Date(text);
  return el("time", { datetime: text, title: text },
    at.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" }));
}
