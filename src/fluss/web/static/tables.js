// All tables: found by a part of their names, a page at a time.

import { get } from "./api.js";
import { grid, h, loading, problem, show } from "./dom.js";
import { count } from "./format.js";

const PAGE = 100;

export function tables(place, life, route) {
  const state = { search: route.query.get("search") || "", database: route.query.get("database") || "", offset: 0 };
  const search = h("input", { type: "search", value: state.search, id: "table-search", autocomplete: "off", spellcheck: "false" });
  const databases = h("select", { id: "database" }, h("option", { value: "" }, "all databases"));
  const found = h("div", { "aria-live": "polite" }, loading());
  show(place, h("h1", null, "Tables"),
    h("div", { class: "fields" },
      h("label", { class: "wide" }, "Name contains", search), h("label", null, "Database", databases)), found);

  let timer = null;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { state.search = search.value; state.offset = 0; load(); }, 200);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      const first = found.querySelector("a");
      if (first) { event.preventDefault(); first.focus(); }
    }
  });
  databases.addEventListener("change", () => { state.database = databases.value; state.offset = 0; load(); });

  async function load() {
    try {
      const answer = await get("tables", { ...state, limit: PAGE }, life.signal);
      show(found, ...page(answer, (offset) => { state.offset = offset; load(); }));
    } catch (error) {
      if (error.name !== "AbortError") show(found, problem(error));
    }
  }

  async function loadDatabases() {
    try {
      for (const each of (await get("databases", null, life.signal)).databases) {
        databases.append(h("option", { value: each.name, selected: each.name === state.database }, `${each.name} (${count(each.tables)})`));
      }
    } catch { /* Without the list one can search all the same. */ }
  }

  life.onBack(load);
  loadDatabases();
  load();
  if (!state.search) search.focus({ preventScroll: true });
}

function page(answer, go) {
  const rows = answer.tables.map((each) => h("tr", null,
    h("td", null, each.database),
    h("td", null, h("a", { href: tableLink(each.database, each.table) }, each.table))));
  const table = rows.length
    ? grid("Tables", [{ title: "Database" }, { title: "Table" }], rows).frame
    : h("p", { class: "muted" }, "There is no such table.");
  return [pager("tables", answer.total, answer.offset, answer.tables.length, PAGE, go), table];
}

export function tableLink(database, table) {
  return `#/tables/${encodeURIComponent(database)}/${encodeURIComponent(table)}`;
}

export function pager(what, total, offset, shown, step, go) {
  const text = total ? `${count(offset + 1)} to ${count(offset + shown)} of ${count(total)} ${what}` : `0 ${what}`;
  return h("div", { class: "pages" },
    h("button", { type: "button", disabled: offset === 0, onclick: () => go(Math.max(0, offset - step)) }, "Previous"),
    h("button", { type: "button", disabled: offset + shown >= total, onclick: () => go(offset + step) }, "Next"),
    h("span", null, text));
}
