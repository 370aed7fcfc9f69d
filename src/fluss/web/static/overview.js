// The server at a glance: health, what there is, and what it has been doing for the last minutes.

import { get } from "./api.js";
import { grid, h, problem, show } from "./dom.js";
import { bytes, count, digits, milliseconds, moment, seconds } from "./format.js";
import { plot } from "./plot.js";

const perSecond = (value) => (value === null || value === undefined ? "–" : `${digits(value)}/s`);
const bytesPerSecond = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export function overview(place, life) {
  const facts = h("div", null);
  const plots = [
    [plot("Requests", [{ key: "requests_per_s" }, { key: "errors_per_s", label: "refused" }], perSecond)],
    [plot("Bytes", [{ key: "in_bytes_per_s", label: "in" }, { key: "out_bytes_per_s", label: "out" }], bytesPerSecond, 1024)],
    [plot("Latency, without fetches that wait", [{ key: "p50_ms", label: "p50" }, { key: "p99_ms", label: "p99" }], milliseconds)],
    [plot("Memory", [{ key: "memory_bytes" }], bytes, 1024)],
    [plot("Disk", [{ key: "disk_used_bytes", label: "used" }], bytes, 1024), "disk_total_bytes"],
    [plot("Rows written", [{ key: "rows_per_s" }], perSecond)],
    [plot("Connections", [{ key: "connections" }], digits)],
  ];
  const apis = h("div", null);
  show(place, h("h1", null, "Overview"), facts, h("div", { class: "cards" }, plots.map(([each]) => each.element)),
    h("h2", null, "Requests of the last minute"), apis);

  async function refresh() {
    try {
      const found = await get("overview", null, life.signal);
      show(facts, describe(found));
      for (const [each, least] of plots) each.update(found.series.time_ms, (key) => found.series[key], least ? found.series[least] : 0);
      show(apis, requests(found.apis));
    } catch (error) {
      if (error.name !== "AbortError" && error.status) show(facts, problem(error));
    }
  }
  life.every(2000, refresh);
}

function describe(found) {
  const health = found.health;
  return [
    h("dl", { class: "facts" },
      fact("Health", h("span", { class: `pill ${health.status}` }, health.status)),
      fact("Databases", count(found.databases)), fact("Tables", count(found.tables)),
      fact("Partitions", count(found.partitions)), fact("Running for", seconds((Date.now() - found.started_ms) / 1000)),
      fact("Since", moment(found.started_ms)), fact("Version", found.version), fact("Process", found.process_id),
      fact("Durability", found.durability), fact("Data", found.data_dir)),
    health.reasons.map((reason) => h("p", { class: "error" }, reason)),
  ].flat();
}

function fact(name, value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

function requests(apis) {
  if (!apis.length) return h("p", { class: "muted" }, "There were none yet.");
  const columns = [{ title: "Request" }, ...["per second", "refused", "in", "out", "p50", "p99", "since the start"]
    .map((title) => ({ title, number: true }))];
  return grid("Requests by kind", columns, apis.map((each) => h("tr", null,
    h("td", { class: "mono" }, each.api),
    [digits(each.requests_per_s), digits(each.errors_per_s), bytesPerSecond(each.in_bytes_per_s),
      bytesPerSecond(each.out_bytes_per_s), milliseconds(each.p50_ms), milliseconds(each.p99_ms), count(each.requests)]
      .map((text) => h("td", { class: "number" }, text))))).frame;
}
