// The buttons of a run. Each asks again before it does something.
import { make, say } from "./dom.js";

async function ask(run, action, done, counts = {}) {
  say(`Asking ${run.name} …`);
  try {
    const answer = await fetch("/api/ask", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ run: run.name, action, counts }),
    });
    say(answer.ok ? done : await answer.text());
  } catch {
    say("The server of this page cannot be reached.");
  }
}

function confirm(title, content, label, act, danger = false) {
  const dialog = document.getElementById("dialog");
  const close = () => dialog.close();
  dialog.replaceChildren(make("h2", { id: "dialog-title" }, title), ...content,
    make("div", { class: "buttons" },
      make("button", { type: "button", onclick: close, autofocus: danger }, "Cancel"),
      make("button", { type: "button", class: danger ? "danger" : null, onclick: () => { close(); act(); } }, label)));
  dialog.showModal();
}

function scale(run) {
  const fields = Object.entries(run.scaled).map(([group, count]) => {
    const input = make("input", { type: "number", min: 1, max: run.capacity[group], value: count, name: group, required: true });
    return { group, count, input, line: make("label", {}, `${group} (1 to ${run.capacity[group]})`, input) };
  });
  const hint = make("p", { class: "faint" }, "There is room for as many as the run was started with, or as actor.max_count and inference.max_count say.");
  confirm("Scale the run", [...fields.map((field) => field.line), hint], "Scale", () => {
    const changed = fields.filter(({ input, count }) => Number(input.value) !== count);
    const counts = Object.fromEntries(changed.map(({ group, input }) => [group, Math.round(Number(input.value))]));
    if (changed.length) ask(run, "scale", `${run.name}: ${Object.entries(counts).map(([group, n]) => `${group} = ${n}`).join(", ")}`, counts);
    else say("Nothing was changed.");
  });
}

export function controls(run) {
  if (!run.can_ask) return [];
  const button = (label, act, danger) => make("button", { type: "button", class: danger ? "danger" : null, onclick: act }, label);
  return [
    button("Checkpoint", () => confirm("Write a checkpoint now?", [make("p", {}, run.name)], "Write it",
      () => ask(run, "checkpoint", `${run.name} writes a checkpoint.`))),
    button("Scale", () => scale(run)),
    button("Stop", () => confirm("Stop this run?", [make("p", {}, `${run.name} writes a checkpoint and ends, as with Ctrl-C. \`srl resume\` goes on.`)],
      "Stop the run", () => ask(run, "stop", `${run.name} stops.`), true), true),
  ];
}
