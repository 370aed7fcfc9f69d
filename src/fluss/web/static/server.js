// The server itself: who is connected, how it is configured, what it has logged.

import { get } from "./api.js";
import { grid, h, loading, problem, show } from "./dom.js";
import { bytes, count, counted, moment, seconds } from "./format.js";

function refreshing(life, every, place, load) {
  life.every(every, async () => {
    try {
      await load();
    } catch (error) {
      if (error.name !== "AbortError" && error.status) show(place, problem(error));
    }
  });
}

export function connections(place, life) {
  const found = h("div", null, loading());
  show(place, h("h1", null, "Connections"), found);
  const columns = [{ title: "Client" }, { title: "User" }, { title: "Listener" },
    ...["Connected for", "Idle for", "Requests", "Under way", "Received", "Sent"].map((title) => ({ title, number: true }))];
  refreshing(life, 3000, found, async () => {
    const answer = await get("connections", null, life.signal);
    show(found, h("p", { class: "muted" }, counted(answer.total, "connection")), grid("Connections", columns, answer.connections.map((each) =>
      h("tr", null, h("td", { class: "mono" }, each.address), h("td", null, each.user || "not logged in"), h("td", null, each.listener),
        [seconds(each.connected_s), seconds(each.idle_s), count(each.requests), count(each.in_flight), bytes(each.received_bytes), bytes(each.sent_bytes)]
          .map((text) => h("td", { class: "number" }, text))))).frame);
  });
}

export function configuration(place, life) {
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const changed = h("input", { type: "checkbox" });
  const found = h("div", { "aria-live": "polite" }, loading());
  let options = [];
  show(place, h("h1", null, "Configuration"), h("div", { class: "fields" },
    h("label", { class: "wide" }, "Key or value contains", search), h("label", { class: "check" }, changed, "Only what is not a default")), found);

  function draw() {
    const wanted = search.value.toLowerCase();
    const rows = options.filter((each) => (!changed.checked || each.origin !== "default") && `${each.key} ${each.value}`.toLowerCase().includes(wanted));
    show(found, h("p", { class: "muted" }, counted(rows.length, "option")), grid("Options", [{ title: "Key" }, { title: "Value" }, { title: "From" }],
      rows.map((each) => h("tr", null, h("td", { class: "mono" }, each.key), h("td", { class: "text mono" }, each.value),
        h("td", { class: each.origin === "default" ? "muted" : null }, each.origin)))).frame);
  }
  search.addEventListener("input", draw);
  changed.addEventListener("change", draw);
  async function load() {
    try {
      options = (await get("config", null, life.signal)).options;
      draw();
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }
  life.onBack(load);
  load();
}

export function log(place, life) {
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const level = h("select", null, ["info", "warning", "error", "debug"].map((name) => h("option", { value: name }, name)));
  const found = h("div", null, loading());
  show(place, h("h1", null, "Log"), h("div", { class: "fields" },
    h("label", { class: "wide" }, "Contains", search), h("label", null, "Level", level)), found);
  async function load() {
    const answer = await get("logs", { search: search.value, level: level.value }, life.signal);
    show(found, h("p", { class: "muted" }, `${counted(answer.lines.length, "line")} since the page is on, the newest first`),
      answer.lines.length ? grid("Lines of the log", [{ title: "Time" }, { title: "Level" }, { title: "Part" }, { title: "Line" }],
        answer.lines.map((line) => h("tr", null, h("td", { class: "mono" }, moment(line.time_ms)),
          h("td", { class: `level-${line.level}` }, line.level), h("td", { class: "mono muted" }, line.logger),
          h("td", { class: "text mono" }, line.text)))).frame : null);
  }
  search.addEventListener("input", () => load().catch(() => {}));
  level.addEventListener("change", () => load().catch(() => {}));
  refreshing(life, 3000, found, load);
}
