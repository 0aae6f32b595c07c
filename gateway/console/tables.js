// What the page says of versions, rollouts, workers and events.

import { el, moment, ms, number, percent, rate, show, table, words } from "/console/dom.js";

export const COLORS = 6;

const badge = (text) => el("span", { class: `badge ${text.replaceAll(/[^a-z]/g, "-")}` }, words(text));

function bar(share, color) {
  const part = el("i", { class: `part ${color}` });
  part.style.width = `${share * 100}%`;
  return el("span", { class: "weight" }, el("span", { class: "bar", "aria-hidden": "true" }, part), percent(share));
}

const latest = (series, name) => series?.[name]?.at(-1) ?? null;

export function showVersions(parent, model, colors) {
  const columns = ["Version", "Weight", "State", "Requests", "p50", "p99", "Errors", "Neighbours", "Edges", "Queue wait", "Workers", "Queued"];
  const rows = model.versions.map((version) => {
    const series = model.series[version.version];
    const workers = version.workers;
    return {
      version,
      color: colors.get(version.version),
      texts: [
        rate(latest(series, "rate")), ms(latest(series, "p50")), ms(latest(series, "p99")), percent(latest(series, "errors")),
        number(latest(series, "neighbors")), number(latest(series, "edges")), ms(latest(series, "queue_ms")),
        workers ? `${workers.ready} of ${workers.wanted}` : "–",
        workers?.pending === undefined ? "–" : `${workers.pending} of ${number(workers.capacity)}`,
      ],
    };
  });
  show(parent, rows, () => [
    table("Versions, their weights and how they do", columns, rows.map(({ version, color, texts }) => [
      [el("i", { class: `swatch ${color}` }), version.version], bar(version.weight, color), badge(version.state), ...texts,
    ])),
    ...rows.map(({ version }) => trained(version)).filter(Boolean),
  ]);
}

function trained(version) {
  const metrics = Object.entries(version.metrics).map(([name, value]) => `${words(name)} ${number(value)}`);
  const since = version.registered_at ? ["registered ", moment(version.registered_at)] : [];
  return el("p", { class: "quiet small" }, `${version.version}: ${version.archive}`, ...(since.length ? [", ", ...since] : []),
    metrics.length ? `; training: ${metrics.join(", ")}` : "");
}

export function showRollout(section, body, model) {
  const { rollout, decision } = model;
  section.hidden = !rollout;
  if (!rollout) return;
  show(body, [rollout, decision], () => {
    const steps = rollout.steps.map((step, place) => {
      const state = place < rollout.step ? "passed" : place === rollout.step ? "present" : "ahead";
      const name = step || !rollout.shadow_share ? percent(step) : `copies of ${percent(rollout.shadow_share)}`;
      return el("li", { class: state, "aria-current": state === "present" ? "step" : null }, name);
    });
    return [
      el("p", {}, el("b", {}, `To ${rollout.candidate} `), badge(rollout.phase), rollout.phase === "done" ? "" :
        ` step ${rollout.step + 1} of ${rollout.steps.length} since `, rollout.phase === "done" ? "" : moment(rollout.step_began),
      rollout.phase === "done" ? "" : `, each ${number(rollout.every_s)} s or longer`),
      el("ol", { class: "steps", "aria-label": "Steps" }, steps),
      decision ? el("p", { class: "decision" }, el("b", {}, `The controller: ${words(decision.action)}. `), decision.reason) : "",
      rollout.reason ? el("p", { class: "quiet" }, rollout.reason) : "",
    ];
  });
}

export function showEvents(parent, model) {
  show(parent, model.events, () => model.events.length ? el("ol", {}, model.events.map((event) => {
    const weights = Object.entries(event.weights).map(([version, weight]) => `${version} ${percent(weight)}`).join(", ");
    return el("li", {}, moment(event.at), el("span", {}, el("b", {}, `${event.version} ${event.what}`), ` (${weights || "no traffic"})`,
      event.reason ? `: ${event.reason}` : ""));
  })) : el("p", { class: "quiet" }, "Nothing has happened yet."));
}

export function showWorkers(parent, model) {
  const rows = model.versions.flatMap((version) => (version.workers?.listed ?? []).map((worker) =>
    [version.version, worker.id, worker.status, String(worker.pid), worker.gpu ? "yes" : "no"]));
  const isKnown = model.versions.some((version) => version.workers);
  show(parent, [rows, isKnown], () => {
    if (!rows.length) return el("p", { class: "quiet" }, isKnown ? "There are none." : "TorchServe has not said yet.");
    return table("Workers", ["Version", "Worker", "State", "Process", "GPU"], rows.map((row) =>
      row.map((cell, column) => column === 2 ? badge(cell.toLowerCase()) : cell)));
  });
}
