// Makes elements. Text of a run is only ever set as text, never as HTML.

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces a part of the page only if it has changed, so that what is focused or selected stays.
export function show(place, key, build) {
  const text = JSON.stringify(key);
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  place.replaceChildren(...[build()].flat());
}

export function say(text) {
  const said = document.getElementById("said");
  said.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { said.textContent = ""; }, 10000);
}

const SIZES = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of SIZES) {
    if (size >= limit) return `${Number((value / (unit === "k" ? 1e3 : limit)).toPrecision(3))} ${unit}`;
  }
  if (Number.isInteger(value) || size >= 100) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
}

export const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 90) return `${s} s`;
  const pad = (n) => String(n).padStart(2, "0");
  return `${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}`;
}

export const waitsText = (waits) =>
  waits.map(([what, share]) => `${what.replaceAll("_", " ")} ${percent(share)}`).join(", ");

export function table(caption, titles, rows) {
  const numeric = (title) => (title.startsWith("#") ? "number" : null);
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {},
      make("thead", {}, make("tr", {}, ...titles.map((title) =>
        make("th", { scope: "col", class: numeric(title) }, title.replace("#", ""))))),
      make("tbody", {}, ...rows.map(({ mood, cells }) =>
        make("tr", { class: mood === "bad" ? "bad" : null }, ...cells.map((cell, i) =>
          make("td", { class: numeric(titles[i]) }, cell)))))));
}
