// Small plots of the last minutes: one or two lines, the present value, the highest of the scale.

import { h, show, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 84;

export function plot(title, lines, format, base = 10) {
  const now = h("div", { class: "now" });
  const picture = svg("svg", {
    class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title,
  });
  const highest = h("span", null, "");
  const when = h("span", null, "");
  const element = h("section", { class: "card" }, h("h2", null, title), now, picture, h("div", { class: "scale" }, highest, when));
  let data = null;
  let at = null;

  function draw() {
    const series = lines.map((line) => data.values(line.key));
    const length = series[0].length;
    const index = at === null ? length - 1 : Math.min(at, length - 1);
    show(now, lines.map((line, number) => h("span", { class: number ? "second" : "first" },
      length ? format(series[number][index]) : "–", line.label ? h("small", null, ` ${line.label}`) : null)));
    const found = series.flat().filter((value) => value !== null && value !== undefined);
    const top = data.least || niceTop(Math.max(...found, 1e-9), base);
    highest.textContent = length ? `up to ${format(top)}` : "no values yet";
    when.textContent = length ? (at === null ? "now" : new Date(data.times[index]).toLocaleTimeString("en-GB")) : "";
    const x = (position) => (length < 2 ? WIDTH : (position / (length - 1)) * WIDTH);
    const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 6);
    show(picture,
      svg("path", { class: "frame", d: `M0 ${HEIGHT - 1}H${WIDTH}` }),
      lines.length === 1 ? svg("path", { class: "fill", d: area(series[0], x, y) }) : null,
      series.map((values, number) => svg("path", { class: `line${number ? " second" : ""}`, d: path(values, x, y) })),
      at === null ? null : svg("path", { class: "cross", d: `M${x(index)} 0V${HEIGHT}` }));
    picture.setAttribute("aria-label", `${title}: ${now.textContent}, ${highest.textContent}`);
  }

  picture.addEventListener("pointermove", (event) => {
    if (!data || !data.times.length) return;
    const frame = picture.getBoundingClientRect();
    at = Math.round(((event.clientX - frame.left) / frame.width) * (data.times.length - 1));
    at = Math.max(0, Math.min(data.times.length - 1, at));
    draw();
  });
  picture.addEventListener("pointerleave", () => { at = null; if (data) draw(); });

  return {
    element,
    update(times, values, least) { data = { times, values, least }; draw(); },
  };
}

function path(values, x, y) {
  let text = "";
  let isOpen = false;
  values.forEach((value, position) => {
    if (value === null || value === undefined) { isOpen = false; return; }
    text += `${isOpen ? "L" : "M"}${x(position).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
  });
  return text || "M0 0";
}

function area(values, x, y) {
  if (!values.length || values.some((value) => value === null || value === undefined)) return "M0 0";
  return `${path(values, x, y)}V${HEIGHT}H${x(0).toFixed(1)}Z`;
}

// The next round number; of bytes, round in their units.
function niceTop(value, base) {
  const unit = base === 1024 ? 1024 ** Math.max(0, Math.floor(Math.log(value) / Math.log(1024))) : 1;
  return unit * roundUp(value / unit);
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value);
}
