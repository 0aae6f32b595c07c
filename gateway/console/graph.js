// Draws the explanation of a node: its sampled subgraph in rings by hop, and the tables beside it.

import { el, number, percent, signed, svg, table, words } from "/console/dom.js";

const SIZE = 640;
const MAX_NODES = 400;
const LABELS = 14;
const ROWS = 10;

const sign = (importance) => importance > 0 ? "for" : importance < 0 ? "against" : "none";
const largest = (items) => items.reduce((high, item) => Math.max(high, Math.abs(item.importance)), 0) || 1;
const shortened = (id) => String(id).length > 12 ? `${String(id).slice(0, 11)}…` : String(id);

// Each node beside its siblings, in a sector as wide as what hangs on it: [x, y] by node id.
function layout(nodes, edges) {
  const hops = new Map(nodes.map((node) => [node.node_id, node.hop]));
  const children = new Map(nodes.map((node) => [node.node_id, []]));
  const placed = new Set();
  for (const edge of edges) {
    const isInwards = hops.get(edge.target) === hops.get(edge.source) - 1;
    if (isInwards && !placed.has(edge.source)) {
      placed.add(edge.source);
      children.get(edge.target).push(edge.source);
    }
  }
  const seeds = nodes.filter((node) => !node.hop).map((node) => node.node_id);
  const free = nodes.filter((node) => node.hop && !placed.has(node.node_id)).map((node) => node.node_id);
  const rings = Math.max(1, nodes.reduce((high, node) => Math.max(high, node.hop), 0));
  const weights = new Map();
  const weigh = (id) => {
    const weight = Math.max(1, children.get(id).reduce((sum, child) => sum + weigh(child), 0));
    weights.set(id, weight);
    return weight;
  };
  const roots = [...seeds, ...free];
  const whole = roots.reduce((sum, id) => sum + weigh(id), 0);
  const gap = (SIZE / 2 - 28) / rings;
  const places = new Map();
  const place = (id, from, to) => {
    const angle = (from + to) / 2;
    // Two seeds, as of a pair, stand side by side.
    const radius = hops.get(id) ? hops.get(id) * gap : seeds.length > 1 ? gap / 3 : 0;
    places.set(id, [SIZE / 2 + radius * Math.sin(angle), SIZE / 2 - radius * Math.cos(angle)]);
    let at = from;
    for (const child of children.get(id)) {
      const width = (to - from) * weights.get(child) / weights.get(id);
      place(child, at, at + width);
      at += width;
    }
  };
  let at = 0;
  for (const id of roots) {
    const width = 2 * Math.PI * weights.get(id) / whole;
    place(id, at, at + width);
    at += width;
  }
  return { places, rings, gap };
}

// The most important nodes whose names would not lie on one another.
function labelled(nodes, places) {
  const kept = [];
  for (const node of nodes.slice(0, LABELS)) {
    const [x, y] = places.get(node.node_id);
    const isFree = kept.every((other) => Math.abs(places.get(other.node_id)[1] - y) > 14 || Math.abs(places.get(other.node_id)[0] - x) > 44);
    if (isFree) kept.push(node);
  }
  return kept;
}

function draw(answer, say) {
  // The node itself is always there; of the others, the most important ones.
  const nodes = [...answer.nodes].sort((a, b) => (a.hop > 0) - (b.hop > 0)).slice(0, MAX_NODES);
  const kept = new Set(nodes.map((node) => node.node_id));
  const edges = answer.edges.filter((edge) => kept.has(edge.source) && kept.has(edge.target));
  const { places, rings, gap } = layout(nodes, edges);
  const most = { node: largest(nodes), edge: largest(edges) };
  const circles = Array.from({ length: rings }, (_, ring) =>
    svg("circle", { class: "ring", cx: SIZE / 2, cy: SIZE / 2, r: (ring + 1) * gap }));
  const lines = [...edges].reverse().map((edge) => {
    const [[x1, y1], [x2, y2]] = [places.get(edge.source), places.get(edge.target)];
    const share = Math.abs(edge.importance) / most.edge;
    return svg("line", { class: `edge ${sign(edge.importance)}`, x1, y1, x2, y2, "stroke-width": 0.6 + 4.4 * share, opacity: 0.3 + 0.7 * share },
      svg("title", {}, `${edge.source} → ${edge.target}: ${signed(edge.importance)}`));
  });
  const dots = [...nodes].reverse().map((node) => {
    const [cx, cy] = places.get(node.node_id);
    const share = Math.abs(node.importance) / most.node;
    const about = `node ${node.node_id}, hop ${node.hop}: importance ${signed(node.importance)}`;
    const dot = svg("circle", { class: `node ${node.hop ? "" : "seed"} ${sign(node.importance)}`, cx, cy,
      r: (node.hop ? 3 : 9) + 8 * Math.sqrt(share) }, svg("title", {}, about));
    dot.addEventListener("pointerenter", () => say(about));
    return dot;
  });
  const labels = labelled(nodes, places).map((node) => {
    const [x, y] = places.get(node.node_id);
    return svg("text", { class: "id", x, y: y + (node.hop ? -14 : 4), "text-anchor": "middle" }, shortened(node.node_id));
  });
  const name = `The sampled subgraph of node ${answer.node_id}: ${answer.nodes.length} nodes in ${rings} hops`;
  return {
    picture: svg("svg", { class: "subgraph", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": name }, circles, lines, dots, labels),
    left: answer.nodes.length - nodes.length,
  };
}

function headline(answer) {
  const { label, value, embedding, link } = answer.explained ?? {};
  if (label !== undefined) return `Label ${label}`;
  if (value !== undefined) return `Value ${value}`;
  if (link) return "Link";
  return embedding ? "Embedding" : "Prediction";
}

function facts(answer) {
  const { sampled = {}, graph = {}, fidelity } = answer;
  const listed = [
    ["score", number(answer.score, 4)], ["without any features", number(answer.baseline, 4)],
    ["method", words(String(answer.method ?? "–"))], ["version", String(answer.model_version ?? "–")],
    ["sampled", `${number(sampled.nodes)} nodes, ${number(sampled.edges)} edges${sampled.truncated ? ", truncated" : ""}`],
    ["graph", `${graph.snapshot ?? "–"} at mutation ${graph.seq ?? "–"}`],
  ];
  if (fidelity) {
    listed.push([`score without the ${fidelity.edges} most important edges`, number(fidelity.without, 4)],
      ["score with only these", number(fidelity.only, 4)]);
  }
  if (answer.took_ms !== undefined) listed.push(["took", `${number(answer.took_ms)} ms`]);
  return el("dl", { class: "facts" }, listed.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function important(title, columns, items, cells) {
  const most = largest(items);
  const rows = items.slice(0, ROWS).map((item) => {
    const part = el("i", { class: `part ${sign(item.importance)}` });
    part.style.width = percent(Math.abs(item.importance) / most);
    return [...cells(item), [el("span", { class: "weight" }, el("span", { class: "bar", "aria-hidden": "true" }, part), signed(item.importance))]];
  });
  return el("div", {}, el("h3", {}, title), rows.length ? table(title, [...columns, "Importance"], rows) : el("p", { class: "quiet" }, "none"));
}

export function explanation(answer) {
  const said = el("p", { class: "readout" }, "Point at a node to see which it is.");
  const { picture, left } = draw(answer, (text) => said.replaceChildren(text));
  const legend = el("p", { class: "legend small" },
    el("span", {}, el("i", { class: "swatch for" }), "speaks for it"), el("span", {}, el("i", { class: "swatch against" }), "speaks against it"),
    el("span", {}, "rings: hops; size and width: importance"));
  return [
    el("h3", { class: "headline" }, `Node ${answer.node_id}: ${headline(answer)}`),
    answer.complete === false ? el("p", { class: "quiet" }, "The explanation is not complete: it was stopped by its limits.") : null,
    facts(answer),
    el("div", { class: "explained" },
      el("figure", {}, picture, el("figcaption", {}, legend, said,
        left ? el("p", { class: "quiet" }, `${number(left)} less important nodes are not drawn.`) : null)),
      el("div", {},
        important("Most important features", ["Feature"], answer.features ?? [], (item) => [String(item.feature)]),
        important("Most important edges", ["From", "To", "Hop"], answer.edges, (item) => [String(item.source), String(item.target), String(item.hop)]),
        important("Most important nodes", ["Node", "Hop"], answer.nodes, (item) => [String(item.node_id), String(item.hop)]))),
  ].filter(Boolean);
}
