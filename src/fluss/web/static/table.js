// One table: its schema, its rows and changes, a live tail, and where its buckets are.

import { follow, get, tablePath } from "./api.js";
import { dialog, grid, h, loading, problem, show } from "./dom.js";
import { bytes, count, counted, milliseconds, moment } from "./format.js";
import { pager } from "./tables.js";

const PAGE = 100;
const TAIL_ROWS_MAX = 500;

export function table(place, life, route) {
  const [, database, name, chosen] = route.parts;
  const path = tablePath(database, name);
  const body = h("div", null, loading());
  show(place, h("p", null, h("a", { href: "#/tables" }, "Tables"), " / ",
    h("a", { href: `#/tables?database=${encodeURIComponent(database)}` }, database)), h("h1", null, name), body);

  async function load() {
    try {
      const info = await get(path, null, life.signal);
      show(body, ...describe(info), tabs(path, info, life, chosen));
    } catch (error) {
      if (error.name !== "AbortError") show(body, problem(error));
    }
  }
  life.onBack(() => { if (body.querySelector(":scope > .error")) load(); });
  load();
}

function describe(info) {
  const fact = (title, value) => (value ? h("div", null, h("dt", null, title), h("dd", null, value)) : null);
  return [
    info.comment ? h("p", null, info.comment) : null,
    h("dl", { class: "facts" },
      fact("Kind", info.primary_keys.length ? "primary key" : "log"), fact("Primary key", info.primary_keys.join(", ")),
      fact("Partitioned by", info.partition_keys.join(", ")), fact("Bucket key", info.bucket_keys.join(", ")),
      fact("Buckets", count(info.buckets) + (info.partition_keys.length ? " per partition" : "")),
      fact("Created", moment(info.created_ms)), fact("Changed", moment(info.modified_ms)), fact("Id", String(info.id)),
      fact("Schema version", String(info.schema_id))),
  ];
}

function tabs(path, info, life, chosen) {
  const hasKey = info.primary_keys.length > 0;
  const views = [
    ["rows", "Rows", rows], hasKey && ["changelog", "Changelog", changelog], ["tail", "Live tail", tail],
    hasKey && ["lookup", "Look up", lookup], ["schema", "Schema", schema], ["buckets", "Buckets", buckets],
    info.partition_keys.length && ["partitions", "Partitions", partitions], ["consumers", "Consumers", consumers],
    ["storage", "Lake and storage", storage],
  ].filter(Boolean);
  const panel = h("div", { role: "tabpanel", id: "panel", tabindex: "-1" });
  let own = null;

  const buttons = views.map(([key, title], position) => h("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel",
    onclick: () => choose(position), onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = (position + step + views.length) % views.length;
      choose(next);
      buttons[next].focus();
    },
  }, title));

  function choose(position) {
    const [key, , view] = views[position];
    if (own) own.end();
    own = life.child();
    buttons.forEach((button, number) => {
      button.setAttribute("aria-selected", String(number === position));
      button.setAttribute("tabindex", number === position ? "0" : "-1");
    });
    panel.setAttribute("aria-labelledby", `tab-${key}`);
    history.replaceState(null, "", `#/${path}/${key}`);
    show(panel);
    view(panel, own, path, info);
  }
  choose(Math.max(0, views.findIndex(([key]) => key === chosen)));
  return h("div", null, h("div", { role: "tablist", "aria-label": "About this table" }, buttons), panel);
}

// Rows

function typesOf(info) {
  return new Map(info.columns.map((column) => [column.name, column.type]));
}

const OWN_TITLES = new Map([["_change_type", "change"], ["_log_offset", "offset"], ["_commit_timestamp", "written at"]]);

function rowColumns(columns, info) {
  const types = typesOf(info);
  return [{ title: "", hidden: "open" }, ...columns.map((name) => ({
    title: OWN_TITLES.get(name) || name, type: types.get(name), number: isNumber(name, types.get(name)),
  }))];
}

function isNumber(name, type) {
  return name === "_log_offset" || /^(tinyint|smallint|int|bigint|float|double|decimal)\b/.test(type || "");
}

function rowElement(columns, values, info, isNew) {
  const types = typesOf(info);
  const open = h("button", {
    type: "button", class: "open-row", "aria-label": "Show the whole row",
    onclick: () => dialog("Row", h("dl", null, columns.flatMap((name, position) => [
      h("dt", null, OWN_TITLES.get(name) || name),
      h("dd", { class: "mono" }, values[position] === null ? "null" : String(values[position]))]))),
  }, "⋯");
  return h("tr", { class: isNew ? "new" : null }, h("td", null, open),
    values.map((value, position) => cell(value, isNumber(columns[position], types.get(columns[position])))));
}

function cell(value, isNumeric) {
  const kind = `${isNumeric ? "number" : "value"}${value === null ? " null" : ""}`;
  return h("td", { class: kind }, value === null ? "null" : String(value));
}

function reading(kind, title) {
  return (place, life, path, info) => {
    const filter = h("input", { type: "text", placeholder: "such as price > 10 AND name LIKE 'a%'", spellcheck: "false", autocomplete: "off" });
    const limit = h("select", null, [50, 100, 500].map((number) => h("option", { value: number }, String(number))));
    const partition = info.partition_keys.length ? h("input", { type: "text", placeholder: "newest", spellcheck: "false" }) : null;
    const found = h("div", { "aria-live": "polite" });
    const form = h("form", { class: "fields" }, h("label", { class: "wide" }, "Filter", filter),
      partition ? h("label", null, "Partition", partition) : null, h("label", null, "Rows", limit),
      h("button", { type: "submit", class: "main" }, "Read"));
    form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
    show(place, form, found);

    async function load() {
      show(found, h("p", { class: "muted" }, "Reading …"));
      try {
        const answer = await get(`${path}/${kind}`, { filter: filter.value, limit: limit.value, partition: partition && partition.value }, life.signal);
        const note = [counted(answer.rows.length, "row"), answer.is_cut ? "there may be more" : null, answer.note || null].filter(Boolean).join("; ");
        show(found, h("p", { class: "muted" }, note), answer.rows.length
          ? grid(title, rowColumns(answer.columns, info), answer.rows.map((values) => rowElement(answer.columns, values, info))).frame : null);
      } catch (error) {
        if (error.name !== "AbortError") show(found, problem(error));
      }
    }
    load();
  };
}

const rows = reading("rows", "Rows");
const changelog = reading("changes", "Changes, the newest first");

function tail(place, life, path, info) {
  const filter = h("input", { type: "text", placeholder: "rows to show, such as price > 10", spellcheck: "false", autocomplete: "off" });
  const button = h("button", { type: "submit", class: "main" }, "Start");
  const state = h("span", { class: "muted", role: "status" }, "not started");
  const found = h("div", null);
  const form = h("form", { class: "fields" }, h("label", { class: "wide" }, "Filter", filter), button, state);
  let running = null;
  let seen = 0;

  form.addEventListener("submit", (event) => { event.preventDefault(); if (running) stop("stopped"); else start(); });
  show(place, form, found);
  life.onEnd(() => stop("stopped"));
  start();

  function stop(text) {
    if (running) running.abort();
    running = null;
    button.textContent = "Start";
    state.textContent = text;
  }

  async function start() {
    const own = new AbortController();
    running = own;
    button.textContent = "Stop";
    seen = 0;
    let body = null;
    try {
      await follow(`${path}/tail`, { filter: filter.value }, own.signal, (message) => {
        if (message.error) { show(found, problem(new Error(message.error))); return; }
        if (!body) {
          const made = grid("Live tail, the newest first", rowColumns(message.columns, info), []);
          body = made.body;
          show(found, made.frame);
        }
        seen += message.rows.length + message.skipped;
        for (const values of message.rows) body.prepend(rowElement(message.columns, values, info, true));
        while (body.children.length > TAIL_ROWS_MAX) body.lastChild.remove();
        state.textContent = seen ? `live; ${counted(seen, "row")} so far` : "live; waiting for rows";
      }, (text) => { state.textContent = text === "live" ? "live; waiting for rows" : text; });
    } catch (error) {
      show(found, problem(error));
      if (running === own) stop("not started");
    }
  }
}

function lookup(place, life, path, info) {
  const types = typesOf(info);
  const fields = info.primary_keys.map((name) => [name, h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false" })]);
  const found = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "fields" }, fields.map(([name, field]) => h("label", null, `${name} ${types.get(name)}`, field)),
    h("button", { type: "submit", class: "main" }, "Look up"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const key = JSON.stringify(Object.fromEntries(fields.map(([name, field]) => [name, field.value])));
      const { row } = await get(`${path}/lookup`, { key }, life.signal);
      show(found, row === null ? h("p", { class: "muted" }, "There is no row with this key.")
        : grid("The row", [{ title: "Column" }, { title: "Type" }, { title: "Value" }], Object.entries(row).map(([name, value]) =>
          h("tr", null, h("td", null, name), h("td", { class: "muted" }, types.get(name)),
            h("td", { class: `text mono${value === null ? " null" : ""}` }, value === null ? "null" : String(value))))).frame);
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  });
  show(place, form, found);
  fields[0][1].focus({ preventScroll: true });
}

// What the table is

function schema(place, life, path, info) {
  const properties = (title, entries) => (entries.length ? [h("h2", null, title), grid(title, [{ title: "Key" }, { title: "Value" }],
    entries.map((each) => h("tr", null, h("td", { class: "mono" }, each.key), h("td", { class: "text mono" }, each.value)))).frame] : []);
  show(place, grid("Columns", [{ title: "Column" }, { title: "Type" }, { title: "Role" }, { title: "Comment" }], info.columns.map((column) =>
    h("tr", null, h("td", null, column.name), h("td", { class: "mono" }, column.type),
      h("td", null, [column.is_key && "primary key", column.is_partition && "partition"].filter(Boolean).join(", ")),
      h("td", { class: "text" }, column.comment || "")))).frame,
  ...properties("Properties", info.properties), ...properties("Custom properties", info.custom_properties));
}

function buckets(place, life, path, info) {
  const partition = info.partition_keys.length ? h("input", { type: "text", required: true, spellcheck: "false", placeholder: "a name" }) : null;
  const found = h("div", { "aria-live": "polite" });
  if (partition) {
    const form = h("form", { class: "fields" }, h("label", { class: "wide" }, "Partition", partition), h("button", { type: "submit", class: "main" }, "Show"));
    form.addEventListener("submit", (event) => { event.preventDefault(); load(0); });
    show(place, form, found);
    newest();
  } else {
    show(place, found);
    load(0);
  }

  async function newest() {
    try {
      const answer = await get(`${path}/partitions`, { limit: 1 }, life.signal);
      if (!answer.partitions.length) { show(found, h("p", { class: "muted" }, "The table has no partitions yet.")); return; }
      partition.value = answer.partitions[0].name;
      load(0);
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }

  async function load(offset) {
    try {
      const answer = await get(`${path}/buckets`, { offset, limit: PAGE, partition: partition && partition.value }, life.signal);
      const titles = ["First offset", "End", "Records", "Log", "Segments", "Rows by key", "In remote storage"];
      const columns = [{ title: "Bucket", number: true }, { title: "State" }, ...titles.map((title) => ({ title, number: true }))];
      show(found, pager("buckets", answer.total, answer.offset, answer.buckets.length, PAGE, load),
        grid("Buckets", columns, answer.buckets.map((each) => h("tr", null,
          h("td", { class: "number" }, each.bucket), h("td", { class: each.state === "failed" ? "red" : null }, each.state),
          [count(each.start), count(each.end), count(each.end - each.start), bytes(each.log_bytes), count(each.segments),
            each.kv_bytes === null ? "–" : bytes(each.kv_bytes),
            each.remote_end === null ? "–" : `${bytes(each.remote_bytes)} to ${count(each.remote_end)}`]
            .map((text) => h("td", { class: "number" }, text))))).frame);
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }
}

function partitions(place, life, path) {
  const search = h("input", { type: "search", spellcheck: "false", autocomplete: "off" });
  const found = h("div", { "aria-live": "polite" });
  search.addEventListener("input", () => load(0));
  show(place, h("div", { class: "fields" }, h("label", { class: "wide" }, "Name contains", search)), found);
  load(0);

  async function load(offset) {
    try {
      const answer = await get(`${path}/partitions`, { offset, limit: PAGE, search: search.value }, life.signal);
      show(found, pager("partitions", answer.total, answer.offset, answer.partitions.length, PAGE, load),
        answer.partitions.length ? grid("Partitions", [{ title: "Partition" }, { title: "Id", number: true }], answer.partitions.map((each) =>
          h("tr", null, h("td", null, each.name), h("td", { class: "number" }, each.id)))).frame : null);
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }
}

function consumers(place, life, path) {
  const found = h("div", null, loading());
  show(place, found);
  async function load() {
    try {
      const answer = await get(`${path}/consumers`, null, life.signal);
      if (!answer.consumers.length) { show(found, h("p", { class: "muted" }, "Nobody reads this table by the name of a consumer.")); return; }
      show(found, ...answer.consumers.flatMap((consumer) => [
        h("h2", null, consumer.name, " ", h("span", { class: "pill" }, `${count(consumer.lag)} behind`)),
        h("p", { class: "muted" }, consumer.members.length ? `read by ${consumer.members.join(", ")}` : "no members now"),
        grid(`Buckets of the consumer ${consumer.name}`, [{ title: "Partition id", number: true }, { title: "Bucket", number: true },
          { title: "Read by" }, { title: "Position", number: true }, { title: "End", number: true }, { title: "Lag", number: true }],
        consumer.buckets.map((each) => h("tr", null,
          h("td", { class: "number" }, each.partition_id === null ? "–" : each.partition_id), h("td", { class: "number" }, each.bucket),
          h("td", null, each.member || "–"),
          [each.position, each.end, each.lag].map((value) => h("td", { class: "number" }, count(value)))))).frame]));
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }
  life.every(5000, load);
}

function storage(place, life, path) {
  const found = h("div", null, loading());
  show(place, found);
  const fact = (title, value) => h("div", null, h("dt", null, title), h("dd", null, value));
  async function load() {
    try {
      const answer = await get(`${path}/storage`, null, life.signal);
      const lake = answer.lake;
      show(found,
        h("h2", null, "Lake"),
        lake ? h("dl", { class: "facts" }, fact("Next round", lake.state), fact("Freshness", milliseconds(lake.freshness_ms)),
          fact("Snapshot", lake.snapshot_id === null ? "none yet" : String(lake.snapshot_id)),
          fact("Failed rounds", count(lake.failures)), fact("Files", bytes(lake.file_bytes)), fact("Records", count(lake.records)))
          : h("p", { class: "muted" }, "This table has no lake (table.datalake.enabled)."),
        lake && lake.offsets.length ? grid("Offsets in the lake", [{ title: "Partition id", number: true }, { title: "Bucket", number: true },
          { title: "In the lake up to", number: true }], lake.offsets.map((each) => h("tr", null,
          [each.partition_id === null ? "–" : each.partition_id, each.bucket, count(each.offset)].map((text) => h("td", { class: "number" }, text))))).frame : null,
        h("h2", null, "Remote storage"),
        h("p", { class: "muted" }, answer.remote.is_enabled ? "Old segments are copied there; the buckets say how much."
          : "The server has none (remote.data.dir)."));
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }
  life.every(10000, load);
}
