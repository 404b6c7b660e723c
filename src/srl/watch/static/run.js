// One run: its dataflow, why it is slow, curves, workers, logs, films, and the buttons.
import { controls } from "./controls.js";
import { RunCharts } from "./runcharts.js";
import { flow } from "./flow.js";
import { LogView } from "./logs.js";
import { duration, make, number, percent, show, table, waitsText } from "./dom.js";

export class RunView {
  constructor(place, name, setTitle) {
    this.name = name;
    setTitle(name);
    const part = (title, id) => {
      const inner = make("div", { id });
      place.append(make("section", { "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), inner));
      return inner;
    };
    place.replaceChildren();
    this.overview = part("Now", "overview");
    this.buttons = make("div", { class: "buttons" });
    this.overview.after(this.buttons);
    this.flow = part("Dataflow", "flow");
    this.flow.className = "flow";
    this.flow.setAttribute("tabindex", "0");
    this.flow.setAttribute("role", "region");
    this.flow.setAttribute("aria-label", "Drawing of the dataflow");
    this.charts = new RunCharts(part("Curves", "curves"));
    this.workers = part("Workers", "workers");
    this.hosts = part("Hosts", "hosts");
    this.streams = part("Streams", "streams");
    this.policies = part("Policies and evaluations", "policies");
    this.films = part("Films and pictures", "films");
    this.logs = new LogView(part("Logs", "logs"), name);
    this.source = new EventSource(`/api/run/live?${new URLSearchParams({ run: name })}`);
    this.source.addEventListener("run", (event) => this.update(JSON.parse(event.data)));
    this.source.addEventListener("clear", () => this.charts.clear());
    this.source.addEventListener("points", (event) => {
      this.charts.add(JSON.parse(event.data));
      this.showPolicies();
    });
  }

  update(run) {
    this.run = run;
    document.body.dataset.state = run.state;
    this.showOverview(run);
    show(this.buttons, [run.can_ask, run.scaled, run.capacity], () => controls(run));
    this.flow.parentElement.hidden = !run.drawing?.boxes.length;
    if (run.drawing) show(this.flow, run.drawing, () => flow(run.drawing));
    this.showWorkers(run);
    show(this.hosts, run.hosts, () => table("Hosts", ["host", "state", "machine", "#processes", "speed", "waits for", "#restarts"],
      (run.hosts || []).map((host) => ({ mood: host.mood, cells: [host.name, host.state, host.machine, number(host.processes),
        host.rates.map(([unit, rate]) => `${number(rate)} ${unit}/s`).join(", "), waitsText(host.waits), number(host.restarts)] }))));
    show(this.streams, run.streams, () => table("Streams", ["stream", "carries", "#fill", "#slots", "#policy age", "#lost", "memory"],
      (run.streams || []).map((stream) => ({ cells: [stream.title, `${number(stream.rate)} ${stream.unit}/s`,
        percent(stream.fill), stream.slots ? number(stream.slots) : "–", stream.age === null ? "–" : stream.age.toFixed(2), number(stream.dropped), stream.detail] }))));
    this.showPolicies();
    this.showFilms(run);
    this.logs.update(run.logs, run.state === "running");
  }

  showOverview(run) {
    const mood = { running: "good", finished: "over", failed: "bad", silent: "bad", stopped: "new", starting: "new" }[run.state];
    const state = run.state === "silent" ? "silent: no sign of it, it was probably killed" : run.state;
    const facts = [["state", make("span", { class: mood, id: "state" }, state)], ["environment steps", number(run.env_steps)],
      ["steps per second", run.rate === null ? "–" : number(run.rate)], ["time", duration(run.seconds)],
      ...Object.entries(run.returns).map(([owner, value]) => [`return of ${owner}`, number(value)]),
      ["layout", run.layout || "–"], ["seed", run.seed === null ? "–" : String(run.seed)],
      ["checkpoints", run.checkpoints.length ? `last: ${run.checkpoints.at(-1)}` : "none yet"]];
    const key = [run.state, run.env_steps, run.seconds, run.returns, run.rate, run.bottleneck, run.why, run.checkpoints];
    show(this.overview, key, () => [
      make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      run.why ? make("p", { class: run.state === "failed" ? "bad" : "faint" }, run.why) : null,
      run.bottleneck ? make("p", { id: "bottleneck" }, "Bottleneck: ", run.bottleneck, ". ",
        run.setting ? make("span", {}, "Change: ", make("code", {}, `--set ${run.setting}`)) : null) : null,
    ].filter(Boolean));
  }

  showWorkers(run) {
    const workers = run.workers || [];
    show(this.workers, workers, () => [
      table("Workers", ["worker", "state", "#rate", "unit", "#busy", "waits for", "#restarts", "host", "#pid"],
        workers.map((worker) => ({ mood: worker.mood, cells: [worker.name, worker.state, number(worker.rate), `${worker.unit}/s`,
          percent(worker.busy), waitsText(worker.waits), number(worker.restarts), worker.host, String(worker.pid || "–")] }))),
      run.num_workers > workers.length ? make("p", { class: "faint" }, `${workers.length} of ${run.num_workers} workers; those in trouble come first.`) : null,
    ].filter(Boolean));
  }

  showPolicies() {
    if (!this.run) return;
    const owners = Object.entries(this.run.policies).flatMap(([name, result]) => [[name, result], ...Object.entries(result.agents || {}).map(([side, one]) => [`${name}/${side}`, one])]);
    const evaluations = this.charts.evaluations.slice(-30).reverse();
    show(this.policies, [this.run.policies, evaluations.length], () => [
      table("Policies", ["policy", "#return", "#evaluation", "#episodes", "#version", "#policy age", "#best checkpoint"],
        owners.map(([name, result]) => ({ cells: [name, number(result.episode_return_mean), number(result.eval_return_mean), number(result.episodes),
          number(result.policy_version), number(result.policy_age_mean), result.best_checkpoint === null ? "–" : String(result.best_checkpoint)] }))),
      evaluations.length ? table("Evaluations", ["#steps", "evaluation"], evaluations.map(({ env_steps, ...found }) => ({ cells: [number(env_steps),
        Object.entries(found).map(([key, value]) => `${key.replaceAll("_", " ")} ${number(value)}`).join(", ")] })))
        : make("p", { class: "faint" }, "No evaluations: an evaluator plays beside training with --set evaluator.count=1."),
    ]);
  }

  showFilms(run) {
    show(this.films, run.films, () => run.films.length
      ? make("div", { class: "films" }, ...run.films.map((film) => {
        const source = `/api/film?${new URLSearchParams({ run: this.name, film })}`;
        const picture = /\.(mp4|webm)$/.test(film)
          ? make("video", { src: source, controls: true, preload: "metadata", "aria-label": film })
          : make("img", { src: source, alt: film, loading: "lazy" });
        return make("figure", {}, picture, make("figcaption", {}, film));
      }))
      : make("p", { class: "faint" }, "None in the run's folder. `srl play RUN --video RUN/name.mp4` makes one."));
  }

  close() {
    this.source.close();
    this.charts.close();
    this.logs.close();
  }
}

