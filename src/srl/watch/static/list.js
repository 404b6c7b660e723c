// All runs: a list, and the curves of the chosen ones over each other.
import { Chart } from "./charts.js";
import { make, number, show, duration } from "./dom.js";

const REFRESH = 5000;

export class ListView {
  constructor(place, setTitle) {
    this.setTitle = setTitle;
    this.left = new Set();
    this.charts = new Map();
    this.counts = make("p", { class: "faint", role: "status" });
    this.rows = make("tbody");
    this.chartPlace = make("div", { class: "charts" });
    const all = (wanted) => () => {
      this.left = new Set(wanted ? [] : this.names);
      this.rows.querySelectorAll("input").forEach((box) => { box.checked = wanted; });
      this.refresh();
    };
    const titles = ["draw", "run", "state", "return", "steps", "steps/s", "time"];
    place.replaceChildren(
      make("section", {}, make("h2", {}, "Runs"), this.counts,
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" },
          make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))), this.rows)),
        make("div", { class: "buttons" },
          make("button", { type: "button", onclick: all(true) }, "Draw all"),
          make("button", { type: "button", onclick: all(false) }, "Draw none"))),
      make("section", {}, make("h2", {}, "Curves"),
        make("p", { class: "faint" }, "Seeds of one experiment are drawn as their mean, with a band of one standard deviation."),
        this.chartPlace));
    this.names = [];
    this.source = new EventSource("/api/runs/live");
    this.source.addEventListener("runs", (event) => this.list(JSON.parse(event.data)));
    this.timer = setInterval(() => { if (this.isLive && !document.hidden) this.refresh(); }, REFRESH);
  }

  list({ folder, runs }) {
    this.setTitle(folder);
    const before = this.names.join("\n");
    this.names = runs.map((run) => run.name);
    this.isLive = runs.some((run) => run.state === "running");
    const live = runs.filter((run) => run.state === "running").length;
    this.counts.textContent = runs.length
      ? `${runs.length} runs, ${live} running`
      : "No runs here yet: `srl train` makes them. This page shows them as they come.";
    if (before !== this.names.join("\n")) {
      this.rows.replaceChildren(...runs.map((run) => this.row(run)));
      this.refresh();
    }
    runs.forEach((run, i) => this.update(this.rows.children[i], run));
  }

  row(run) {
    const choose = (event) => {
      if (event.target.checked) this.left.delete(run.name);
      else this.left.add(run.name);
      this.refresh();
    };
    return make("tr", {},
      make("td", {}, make("input", { type: "checkbox", checked: !this.left.has(run.name), onchange: choose, "aria-label": `Draw ${run.name}` })),
      make("td", {}, make("a", { href: `#/run/${encodeURIComponent(run.name)}` }, run.name)),
      ...[1, 2, 3, 4, 5].map(() => make("td")));
  }

  update(row, run) {
    const mood = { running: "good", finished: "over", failed: "bad", silent: "bad", stopped: "new", starting: "new" }[run.state];
    const returns = Object.entries(run.returns);
    const text = returns.map(([owner, value]) => (returns.length > 1 ? `${owner} ${number(value)}` : number(value))).join(", ");
    const cells = [make("span", { class: mood }, run.state), text, number(run.env_steps), run.rate === null ? "" : number(run.rate), duration(run.seconds)];
    cells.forEach((cell, i) => show(row.children[i + 2], [i ? cell : run.state], () => [cell]));
  }

  async refresh() {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      const query = new URLSearchParams(this.names.filter((name) => !this.left.has(name)).map((name) => ["run", name]));
      const panels = await (await fetch(`/api/overlay?${query}`)).json();
      if (!this.closed) this.drawPanels(panels);
    } finally {
      this.loading = false;
      if (this.again) { this.again = false; this.refresh(); }
    }
  }

  drawPanels(panels) {
    const wanted = new Set(panels.map((panel) => panel.key));
    for (const [key, chart] of this.charts) if (!wanted.has(key)) { chart.remove(); this.charts.delete(key); }
    for (const panel of panels) {
      const series = panel.curves.flatMap((curve) => curve.low
        ? [{ label: curve.label, band: true }, { label: `${curve.label}, low`, edge: true }, { label: `${curve.label}, high`, edge: true }]
        : [{ label: curve.label }]);
      const data = [panel.x, ...panel.curves.flatMap((curve) => (curve.low ? [curve.mean, curve.low, curve.high] : [curve.mean]))];
      const shape = JSON.stringify(series);
      let chart = this.charts.get(panel.key);
      if (chart && chart.shape !== shape) { chart.remove(); chart = undefined; }
      if (!chart) {
        chart = new Chart(this.chartPlace, panel.title, series);
        chart.shape = shape;
        this.charts.set(panel.key, chart);
      }
      chart.set(data);
    }
    this.chartPlace.dataset.drawn = panels.reduce((sum, panel) => sum + panel.curves.length, 0);
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    this.source.close();
    this.charts.forEach((chart) => chart.remove());
  }
}
