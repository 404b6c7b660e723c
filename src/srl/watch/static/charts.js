// Charts by uPlot, in the colours of the page.
import { make, number } from "./dom.js";

// Colours that people with any colour vision can tell apart (Okabe and Ito), for light and dark.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7F7F7F"];
const DARK = ["#58A6E0", "#F0904D", "#3FC79A", "#E8A5C8", "#E3B341", "#9BD3F5", "#B0B0B0"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = new Set();

dark.addEventListener("change", () => charts.forEach((chart) => chart.rebuild()));
addEventListener("resize", () => charts.forEach((chart) => chart.fit()));

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  // `series`: [{label, points: true for marks without a line, low: index, high: index of a band}]
  constructor(place, title, series, xTitle = "environment steps") {
    this.place = make("div", { class: "chart" }, make("h3", {}, title));
    place.append(this.place);
    this.title = title;
    this.series = series;
    this.xTitle = xTitle;
    this.data = [[], ...series.map(() => [])];
    charts.add(this);
    this.rebuild();
  }

  rebuild() {
    this.plot?.destroy();
    const colours = dark.matches ? DARK : COLOURS;
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    const values = (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : number(tick)));
    let colour = -1;
    const series = this.series.map((one) => {
      if (!one.edge && !one.points) colour += 1;
      const stroke = colours[Math.max(0, colour) % colours.length];
      return {
        label: one.label, stroke: one.edge ? "transparent" : stroke, width: one.points || one.edge ? 0 : 1.6,
        points: { show: one.edge ? false : one.points ? true : undefined, size: 7, stroke, fill: css("--panel") },
        spanGaps: !one.points, value: (_, value) => number(value),
      };
    });
    const bands = this.series.flatMap((one, i) => (one.band ? [{ series: [i + 3, i + 2], fill: series[i].stroke + "33" }] : []));
    this.plot = new uPlot({
      width: this.width(), height: 220, scales: { x: { time: false } }, bands,
      series: [{ label: this.xTitle, value: (_, value) => number(value) }, ...series],
      axes: [{ ...axis, values }, { ...axis, values, size: 62 }],
      legend: { live: true }, cursor: { drag: { x: true, y: false } },
    }, this.data, this.place);
    this.plot.root.querySelectorAll(".u-legend tr").forEach((row, i) => {
      row.hidden = i > 0 && Boolean(this.series[i - 1].edge);
    });
    this.describe();
  }

  width() { return Math.max(240, this.place.clientWidth || 400); }

  fit() { this.plot.setSize({ width: this.width(), height: 220 }); }

  set(data) {
    this.data = data;
    this.plot.setData(data);
    this.describe();
  }

  // Who does not see the picture hears the last values.
  describe() {
    const last = this.series.flatMap((one, i) => {
      const known = one.edge ? [] : (this.data[i + 1] || []).filter((value) => value !== null && value !== undefined);
      return known.length ? [`${one.label}: ${number(known[known.length - 1])}`] : [];
    });
    const canvas = this.plot.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${this.title}, last values: ${last.join("; ") || "none yet"}`);
  }

  remove() {
    charts.delete(this);
    this.plot.destroy();
    this.place.remove();
  }
}
