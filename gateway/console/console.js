// Polls the controller and shows what it says.

import { Chart } from "/console/charts.js";
import { byId, el, ms, number, percent, rate, show } from "/console/dom.js";
import { explanation } from "/console/graph.js";
import { COLORS, showEvents, showRollout, showVersions, showWorkers } from "/console/tables.js";

const TIMEOUT_MS = 10_000;
const KEPT = 450;

const charts = {
  rate: new Chart("Requests", rate),
  latency: new Chart("Latency", ms, { hint: "p99 thick, p95 thin, p50 dashed" }),
  errors: new Chart("Errors", percent, { floor: 0.01, hint: "5xx and degraded, share of requests" }),
  neighbors: new Chart("Sampled neighbours", (value) => number(value), { hint: "mean per node computed" }),
  edges: new Chart("Subgraph edges", (value) => number(value), { hint: "mean per node computed" }),
  sources: new Chart("Answers by source", rate, { hint: "nodes" }),
};

// All points so far: `times`, and values by model, version and name.
let points = { run: "", last: 0, times: [], models: {} };
let state = null;
let chosen = decodeURIComponent(location.hash.slice(1));

// Adds new points; those of a version that was not there before are preceded by nothing.
function merge(answer) {
  const isNew = answer.run !== points.run || answer.first !== points.last + 1;
  if (isNew) points = { run: answer.run, last: 0, times: [], models: {} };
  const before = points.times.length;
  points.times.push(...answer.times_s);
  points.last = answer.last;
  const models = {};
  for (const [model, { series }] of Object.entries(answer.models)) {
    models[model] = {};
    for (const [version, named] of Object.entries(series)) {
      models[model][version] = {};
      for (const [name, values] of Object.entries(named)) {
        const older = points.models[model]?.[version]?.[name] ?? Array(before).fill(null);
        models[model][version][name] = [...older, ...values].slice(-KEPT);
      }
    }
  }
  points.times = points.times.slice(-KEPT);
  points.models = models;
}

function chooseModel() {
  const names = Object.keys(state.models);
  // Of those with traffic the first, unless one is chosen.
  const routed = names.filter((name) => state.models[name].versions.some((version) => version.weight));
  const name = names.includes(chosen) ? chosen : routed[0] ?? names[0];
  show(byId("model"), [names, name], () => names.map((other) => el("option", { value: other, selected: other === name }, other)));
  return name;
}

function showLegend(colors) {
  show(byId("legend"), [...colors], () => [...colors].map(([version, color]) =>
    el("span", {}, el("i", { class: `swatch ${color}` }), version)));
}

function showCharts(model, colors) {
  const span = Number(byId("span").value);
  const now = state.now_s;
  const first = Math.max(0, points.times.findIndex((time) => time >= now - span - state.sample_s));
  const times = points.times.slice(first);
  const values = (series, name) => series[name]?.slice(first) ?? Array(times.length).fill(null);
  const drawn = [...colors].filter(([version]) => model.series[version]);
  const lines = (name, options = {}, suffix = "") => drawn.map(([version, color]) =>
    ({ name: version + suffix, color, values: values(model.series[version], name), ...options }));
  for (const name of ["rate", "errors", "neighbors", "edges"]) charts[name].update(times, lines(name), span, now);
  charts.latency.update(times, [...lines("p50", { dash: "2 4" }, " p50"), ...lines("p95", { width: 1 }, " p95"), ...lines("p99", {}, " p99")], span, now);
  charts.sources.update(times, sourceLines(drawn, model, values), span, now);
}

// The answers of all versions together, by where they are from.
function sourceLines(drawn, model, values) {
  const all = drawn.map(([version]) => model.series[version]);
  const sources = [...new Set(all.flatMap((series) => Object.keys(series)).filter((name) => name.startsWith("from ")))].sort();
  return sources.map((source, place) => {
    const parts = all.map((series) => values(series, source));
    const sums = parts[0].map((_, at) => parts.reduce((sum, part) => part[at] === null ? sum : (sum ?? 0) + part[at], null));
    return { name: source.slice(5), color: `source-${place % COLORS}`, values: sums };
  });
}

function showProblems() {
  const away = [["Envoy", state.away.envoy], ["TorchServe", state.away.torchserve]].filter(([, why]) => why);
  const said = [...away.map(([name, why]) => `${name} is away or does not say: ${why}`),
    ...state.problems.filter((problem) => !away.some(([, why]) => why === problem))];
  show(byId("problems"), said, () => said.map((problem) => el("p", {}, problem)));
}

function showVersionsToLook(model) {
  const select = byId("look-version");
  const names = model.versions.filter((version) => version.state !== "missing").map((version) => version.version);
  const before = select.value;
  show(select, names, () => ["", ...names].map((name) => el("option", { value: name, selected: name === before }, name || "default")));
}

function showAll() {
  showProblems();
  const name = chooseModel();
  const model = name === undefined ? { versions: [], events: [], rollout: null } : state.models[name];
  const known = { ...model, series: points.models[name] ?? {} };
  const versions = [...new Set([...model.versions.map((version) => version.version), ...Object.keys(known.series)])];
  const colors = new Map(versions.map((version, place) => [version, `color-${place % COLORS}`]));
  showRollout(byId("rollout"), byId("rollout-body"), known);
  showVersions(byId("versions"), known, colors);
  showLegend(colors);
  showCharts(known, colors);
  showVersionsToLook(known);
  showWorkers(byId("workers"), known);
  showEvents(byId("events"), known);
}

function showLive(text, isLive) {
  const live = byId("live");
  if (live.textContent !== text) live.replaceChildren(text);
  live.classList.toggle("away", !isLive);
}

async function poll() {
  let pause = 2000;
  try {
    const url = `/console/state?${new URLSearchParams({ run: points.run, since: points.last })}`;
    const answer = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    state = await answer.json();
    merge(state);
    pause = state.sample_s * 1000;
    showLive("live", true);
    showAll();
  } catch (error) {
    showLive("the controller does not answer", false);
    if (!(error instanceof TypeError) && error.name !== "TimeoutError") console.warn(error);
  }
  // Nobody sees a hidden page; it asks again once it is seen.
  if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
  setTimeout(poll, pause);
}

async function look(event) {
  event.preventDefault();
  const result = byId("look-result");
  const button = event.target.querySelector("button");
  button.disabled = true;
  result.setAttribute("aria-busy", "true");
  try {
    const asked = { model: byId("model").value, version: byId("look-version").value || null, node_id: byId("look-node").value };
    const answer = await fetch("/console/look", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked),
    });
    const content = await answer.json();
    const error = content.error ?? content.answer.error;
    result.replaceChildren(...(error ? [el("p", { class: "error" }, error.message)] : explanation(content.answer)));
  } catch (error) {
    result.replaceChildren(el("p", { class: "error" }, `The look-up failed: ${error.message}`));
  } finally {
    button.disabled = false;
    result.removeAttribute("aria-busy");
  }
}

byId("charts").append(...Object.values(charts).map((chart) => chart.element));
byId("look").addEventListener("submit", look);
byId("span").addEventListener("change", () => state && showAll());
byId("model").addEventListener("change", (event) => {
  chosen = event.target.value;
  history.replaceState(null, "", `#${encodeURIComponent(chosen)}`);
  showAll();
});
poll();
