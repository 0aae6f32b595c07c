// Line charts over time, in SVG. A pointer, or the arrow keys, read values off at an instant.

import { el, svg } from "/console/dom.js";

const HEIGHT = 170;
const MARGIN = { left: 46, right: 10, top: 8, bottom: 22 };

// The smallest of 1, 2 or 5 times a power of ten that is not below a number.
function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

export class Chart {
  // `floor`: the scale ends no lower, so that noise around nothing does not look like much.
  constructor(title, format, { floor = 1, hint = "" } = {}) {
    this.title = title;
    this.format = format;
    this.floor = floor;
    this.lines = [];
    this.times = [];
    this.at = null;
    this.readout = el("p", { class: "readout" });
    this.plot = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": title });
    this.element = el("figure", { class: "card chart" },
      el("figcaption", {}, el("strong", {}, title), hint ? el("span", { class: "quiet" }, hint) : null), this.readout, this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event.clientX - this.plot.getBoundingClientRect().left));
    this.plot.addEventListener("pointerleave", () => this.choose(null));
    this.plot.addEventListener("blur", () => this.choose(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // `lines`: {name, values, color, dash, width} with a value, or null, for each of the times.
  update(times, lines, span, now) {
    Object.assign(this, { times, lines, span, now });
    this.draw();
  }

  point(x) {
    if (!this.times.length) return;
    const at = this.now - this.span * (1 - (x - MARGIN.left) / this.inner);
    let nearest = 0;
    this.times.forEach((time, place) => {
      if (Math.abs(time - at) < Math.abs(this.times[nearest] - at)) nearest = place;
    });
    this.choose(this.times[nearest]);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.times.length) return;
    event.preventDefault();
    const last = this.times.length - 1;
    const from = this.at === null ? last + 1 : this.times.indexOf(this.at);
    this.choose(this.times[Math.max(0, Math.min(last, from + steps[event.key]))]);
  }

  choose(at) {
    this.at = at;
    this.draw();
  }

  x(time) { return MARGIN.left + this.inner * (1 - (this.now - time) / this.span); }

  y(value) { return MARGIN.top + (HEIGHT - MARGIN.top - MARGIN.bottom) * (1 - value / this.top); }

  draw() {
    const width = this.plot.clientWidth;
    if (!width || !this.now) return;
    this.inner = width - MARGIN.left - MARGIN.right;
    const all = this.lines.flatMap((line) => line.values).filter((value) => value !== null);
    // Not Math.max(...all): so many arguments may be too many.
    this.top = niceAbove(all.reduce((high, value) => Math.max(high, value), this.floor));
    this.plot.replaceChildren(svg("svg", { width, height: HEIGHT, "aria-hidden": "true" },
      this.axes(width), this.lines.map((line) => this.path(line)), this.cursor(),
      all.length ? null : svg("text", { class: "empty", x: MARGIN.left + this.inner / 2, y: HEIGHT / 2 }, "nothing yet")));
    this.read();
  }

  axes(width) {
    const ticks = [0, 0.5, 1].map((share) => share * this.top);
    const lines = ticks.flatMap((tick) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.y(tick), y2: this.y(tick) }),
      svg("text", { class: "tick", x: MARGIN.left - 6, y: this.y(tick) + 4, "text-anchor": "end" }, this.format(tick)),
    ]);
    const ago = [[1, "start"], [0.5, "middle"], [0, "end"]].map(([share, anchor]) => {
      const seconds = share * this.span;
      const text = !share ? "now" : seconds < 120 ? `${seconds} s ago` : `${seconds / 60} min ago`;
      return svg("text", { class: "tick", x: this.x(this.now - seconds), y: HEIGHT - 5, "text-anchor": anchor }, text);
    });
    return [...lines, ...ago];
  }

  path(line) {
    let drawn = "";
    let open = false;
    line.values.forEach((value, place) => {
      const isGap = value === null || this.x(this.times[place]) < MARGIN.left - 1;
      if (!isGap) {
        const spot = `${this.x(this.times[place]).toFixed(1)},${this.y(value).toFixed(1)}`;
        // A line to itself is a dot, with round ends.
        drawn += open ? `L${spot}` : `M${spot}L${spot}`;
      }
      open = !isGap;
    });
    return svg("path", { class: `line ${line.color}`, d: drawn, "stroke-dasharray": line.dash, "stroke-width": line.width ?? 2 });
  }

  cursor() {
    if (this.at === null || !this.times.includes(this.at)) return null;
    const place = this.times.indexOf(this.at);
    const x = this.x(this.at);
    return [
      svg("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...this.lines.filter((line) => line.values[place] !== null).map((line) =>
        svg("circle", { class: `dot ${line.color}`, cx: x, cy: this.y(line.values[place]), r: 3.5 })),
    ];
  }

  read() {
    const chosen = this.at === null ? -1 : this.times.indexOf(this.at);
    const place = chosen < 0 ? this.times.length - 1 : chosen;
    const values = this.lines.map((line) => `${line.name} ${this.format(line.values[place] ?? null)}`);
    const when = chosen < 0 ? "now" : new Date(this.at * 1000).toLocaleTimeString("en-GB");
    this.readout.replaceChildren(el("span", { class: "quiet" }, when), ...this.lines.map((line) =>
      el("span", { class: "value" }, el("i", { class: `swatch ${line.color} ${line.dash ? "dashed" : ""}` }),
        `${line.name} `, el("b", {}, this.format(line.values[place] ?? null)))));
    this.plot.setAttribute("aria-label", `${this.title}, ${when}: ${values.join(", ") || "nothing yet"}`);
  }
}
