// The curves of one run: returns, speed, policy age, what the learner says, and any other metric.
import { Chart } from "./charts.js";
import { make } from "./dom.js";

const FIRST = [
  ["Episode return", /(^|\.)episode_return_mean$/, /(^|\.)eval_return_mean$/],
  ["Environment steps per second", /^env_steps_per_second$/],
  ["Policy age (versions)", /(^|\.)policy_age_(mean|max)$/],
];
const AXES = { env_steps: "environment steps", seconds: "seconds" };

export class RunCharts {
  constructor(place) {
    this.axis = make("select", { onchange: () => this.rebuild() },
      ...Object.entries(AXES).map(([key, title]) => make("option", { value: key }, title)));
    this.first = make("div", { class: "charts" });
    this.learner = make("div", { class: "charts" });
    this.rest = make("div", { class: "charts" });
    this.more = make("details", { class: "more", ontoggle: () => this.rebuild() }, make("summary", {}, "All other metrics"), this.rest);
    place.append(make("p", {}, make("label", {}, "Along ", this.axis)), this.first,
      make("h3", {}, "Learner"), this.learner, this.more);
    this.charts = [];
    this.clear();
  }

  clear() {
    this.columns = {};
    this.evaluations = [];
    this.keys = "";
  }

  add({ columns, evaluations }) {
    const known = this.columns.env_steps?.length || 0;
    for (const [key, values] of Object.entries(columns)) {
      const before = this.columns[key] || new Array(known).fill(null);
      this.columns[key] = before.concat(values);
    }
    this.evaluations = evaluations;
    if (Object.keys(this.columns).sort().join() !== this.keys) this.rebuild();
    else this.draw();
  }

  rebuild() {
    const keys = Object.keys(this.columns).sort();
    this.keys = keys.join();
    this.charts.forEach(({ chart }) => chart.remove());
    this.charts = [];
    const used = new Set(["env_steps", "seconds", "window_full"]);
    const add = (place, title, shown, marks = []) => {
      shown.concat(marks).forEach((key) => used.add(key));
      if (!shown.length && !marks.length) return;
      const series = [...shown.map((key) => ({ label: key })), ...marks.map((key) => ({ label: key, points: true }))];
      this.charts.push({ chart: new Chart(place, title, series, AXES[this.axis.value]), shown, marks });
    };
    for (const [title, pattern, points] of FIRST) {
      add(this.first, title, keys.filter((key) => pattern.test(key)), points ? keys.filter((key) => points.test(key)) : []);
    }
    keys.filter((key) => /(^|\.)train\.[^.]+$/.test(key)).forEach((key) => add(this.learner, key, [key]));
    if (this.more.open) keys.filter((key) => !used.has(key)).forEach((key) => add(this.rest, key, [key]));
    this.draw();
  }

  draw() {
    const x = this.columns[this.axis.value] || [];
    for (const { chart, shown, marks } of this.charts) {
      chart.set([x, ...shown.map((key) => this.columns[key]), ...marks.map((key) => this.marks(key))]);
    }
  }

  // A mark for each evaluation, at the first point that has seen it.
  marks(key) {
    const values = this.columns[key];
    const versions = this.columns[key.replace(/eval_return_mean$/, "").replace(/agents\.[^.]+\.$/, "") + "eval_policy_version"] || values;
    return values.map((value, i) => (value !== null && (i === 0 || versions[i] !== versions[i - 1]) ? value : null));
  }

  close() {
    this.charts.forEach(({ chart }) => chart.remove());
  }
}
