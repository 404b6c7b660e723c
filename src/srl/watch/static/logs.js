// The log of any process, followed while its run goes on.
import { make, show } from "./dom.js";

const EVERY = 2000;
const MOST = 400000;

export class LogView {
  constructor(place, run) {
    this.run = run;
    this.choice = make("select", { onchange: () => this.restart() });
    this.text = make("pre", { tabindex: "0", role: "region", "aria-label": "Log", id: "log" });
    place.append(make("label", {}, "Process ", this.choice), this.text);
    this.offset = -1;
    this.timer = setInterval(() => { if (this.live && !document.hidden) this.read(); }, EVERY);
  }

  update(logs, live) {
    this.live = live;
    const before = this.choice.value;
    show(this.choice, logs, () => logs.map((log) => make("option", { value: log }, log.replace(/\.log$/, ""))));
    if (logs.includes(before)) this.choice.value = before;
    if (this.choice.value !== before) this.restart();
  }

  restart() {
    this.offset = -1;
    this.text.textContent = "";
    this.read();
  }

  async read() {
    const log = this.choice.value;
    if (!log || this.reading) return;
    this.reading = true;
    try {
      const answer = await fetch(`/api/log?${new URLSearchParams({ run: this.run, log, offset: this.offset })}`);
      if (!answer.ok || this.choice.value !== log) return;
      const { text, end } = await answer.json();
      this.offset = end;
      if (!text) return;
      const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
      this.text.append(text);
      if (this.text.textContent.length > MOST) this.text.textContent = this.text.textContent.slice(-MOST / 2);
      if (atEnd) this.text.scrollTop = this.text.scrollHeight;
    } finally {
      this.reading = false;
      if (this.choice.value !== log) this.read();
    }
  }

  close() { clearInterval(this.timer); }
}
