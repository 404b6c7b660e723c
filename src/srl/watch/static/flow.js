// The dataflow as a drawing. Where everything is comes from the server; nothing moves by itself, so
// that an open page takes no time from a run on the same machine.
import { draw, number, percent, waitsText } from "./dom.js";

export function flow(drawing) {
  const svg = draw("svg", {
    viewBox: `0 0 ${drawing.width} ${drawing.height}`, width: drawing.width, role: "img",
    "aria-label": "The dataflow; the tables below have the same numbers.",
  });
  svg.append(heads());
  for (const frame of drawing.frames) {
    svg.append(
      draw("rect", { class: "frame", x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: 14 }),
      draw("text", { class: "t", x: frame.x + 12, y: frame.y + 19 }, frame.text));
  }
  for (const arrow of drawing.arrows) {
    const end = arrow.kind === "inference" ? { "marker-start": "url(#back-inference)" } : {};
    svg.append(draw("path", {
      class: `arrow ${arrow.kind}${arrow.rate > 0 ? "" : " still"}`, d: arrow.path,
      "marker-end": `url(#head-${arrow.kind})`, ...end,
    }));
  }
  drawing.arrows.forEach((arrow) => svg.append(...label(arrow)));
  drawing.boxes.forEach((box) => svg.append(...boxOf(box)));
  return svg;
}

function heads() {
  const all = ["sample", "inference", "weights"].flatMap((kind) => [
    ["head", "M0 1 L10 5 L0 9 z", 9], ["back", "M10 1 L0 5 L10 9 z", 1],
  ].map(([end, path, tip]) => draw("marker", {
    id: `${end}-${kind}`, viewBox: "0 0 10 10", refX: tip, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto",
  }, draw("path", { class: `head ${kind}`, d: path, stroke: "none" }))));
  return draw("defs", {}, ...all);
}

export function streamText(stream) {
  const parts = [`${number(stream.rate)} ${stream.unit}/s`];
  if (stream.fill !== null) parts.push(`${percent(stream.fill)} full`);
  if (stream.age !== null) parts.push(`age ${stream.age.toFixed(1)}`);
  return parts.join(" · ");
}

function label(arrow) {
  const text = streamText(arrow);
  const width = Math.max(arrow.title.length * 7, text.length * 6) + 12;
  const left = arrow.x - width / 2;
  return [
    draw("rect", { class: "label", x: left, y: arrow.y - 18, width, height: 38, rx: 5 }),
    draw("text", { class: `m ${arrow.kind}`, x: arrow.x, y: arrow.y - 4 }, arrow.title),
    draw("text", { class: "s m", x: arrow.x, y: arrow.y + 10 }, text),
    ...gauge(arrow, left + 6, arrow.y + 14, width - 12),
  ];
}

function gauge(stream, x, y, width) {
  if (stream.fill === null) return [];
  return [
    draw("rect", { class: "gauge", x, y, width, height: 4, rx: 2 }),
    draw("rect", { class: stream.kind, x, y, width: width * Math.min(1, stream.fill), height: 4, rx: 2 }),
  ];
}

function boxOf(box) {
  const parts = [];
  for (let n = box.stack; n > 0; n -= 1) {
    parts.push(draw("rect", { class: "stack", x: box.x + 5 * n, y: box.y - 5 * n, width: box.width - 10 * n, height: 40, rx: 10 }));
  }
  parts.push(
    draw("rect", { class: "box", x: box.x, y: box.y, width: box.width, height: box.height, rx: 10 }),
    draw("text", { class: "s e", x: box.x + box.width - 14, y: box.y + 22 }, box.title));
  box.rows.forEach((row) => parts.push(...rowOf(box, row)));
  for (const stream of box.inner) {
    const y = box.y + stream.y;
    parts.push(
      draw("text", { class: stream.kind, x: box.x + 18, y: y + 15 }, stream.title),
      draw("text", { class: "s", x: box.x + 18, y: y + 29 }, streamText(stream)),
      ...gauge(stream, box.x + 18, y + 33, box.width - 36));
  }
  return parts;
}

function rowOf(box, row) {
  const x = box.x + 8, y = box.y + row.y;
  const restarts = row.restarts ? ` · ${row.restarts} restarts` : "";
  const waits = row.waits.length ? `waits: ${waitsText(row.waits)}` : `busy ${percent(row.busy)}`;
  return [
    draw("rect", { class: `row ${row.mood}`, x, y, width: box.width - 16, height: row.height, rx: 6 }),
    draw("rect", { class: `mark ${row.mood}`, x, y: y + 4, width: 5, height: row.height - 8, rx: 2 }),
    draw("text", { class: "t", x: x + 12, y: y + 16 }, row.count > 1 ? `${row.group} × ${row.count}` : row.group),
    draw("text", { class: `e ${row.mood}`, x: x + box.width - 24, y: y + 16 }, row.state.slice(0, 22)),
    draw("text", { x: x + 12, y: y + 33 }, `${number(row.rate)} ${row.unit}/s${restarts}`),
    draw("text", { class: "s", x: x + 12, y: y + 49 }, waits.slice(0, 40)),
  ];
}
