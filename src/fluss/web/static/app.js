// Which view is shown, the keys, logging in, dark and light, and what happens while the server is away.

import { get, onAway, onLogin, post } from "./api.js";
import { dialog, h, show } from "./dom.js";
import { overview } from "./overview.js";
import { configuration, connections, log } from "./server.js";
import { table } from "./table.js";
import { tables } from "./tables.js";

const main = document.getElementById("main");
const away = document.getElementById("away");
const search = document.getElementById("search");

const VIEWS = [
  { key: "o", path: "", title: "Overview", view: overview },
  { key: "t", path: "tables", title: "Tables", view: tables },
  { key: "c", path: "connections", title: "Connections", view: connections },
  { key: "f", path: "config", title: "Configuration", view: configuration },
  { key: "l", path: "log", title: "Log", view: log },
];

// What belongs to a view that is shown: its requests and timers end with it.
class Life {
  constructor() {
    this.controller = new AbortController();
    this.timers = [];
    this.children = [];
    this.backs = [];
    this.ends = [];
  }

  get signal() { return this.controller.signal; }

  every(ms, refresh) {
    const tick = async () => { if (!document.hidden && !this.signal.aborted) await refresh(); };
    const loop = async () => {
      await tick();
      if (!this.signal.aborted) this.timers[index] = setTimeout(loop, ms);
    };
    const index = this.timers.push(0) - 1;
    loop();
  }

  child() {
    const child = new Life();
    this.children.push(child);
    return child;
  }

  onBack(listener) { this.backs.push(listener); }
  onEnd(listener) { this.ends.push(listener); }

  back() {
    for (const listener of this.backs) listener();
    for (const child of this.children) child.back();
  }

  end() {
    for (const listener of this.ends.splice(0)) listener();
    for (const child of this.children.splice(0)) child.end();
    for (const timer of this.timers) clearTimeout(timer);
    this.controller.abort();
  }
}

let life = new Life();
let shown = "";

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch { /* An address that is none leads to the overview. */ }
  return { parts, query: new URLSearchParams(query || "") };
}

function go() {
  const here = route();
  life.end();
  life = new Life();
  const first = here.parts[0] || "";
  const isTable = first === "tables" && here.parts.length >= 3;
  const found = VIEWS.find((each) => each.path === first) || VIEWS[0];
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.path === found.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${isTable ? `${here.parts[1]}.${here.parts[2]}` : found.title} – Flussbett`;
  const view = isTable ? table : found.view;
  const name = isTable ? here.parts.slice(0, 3).join("/") : found.path;
  if (name !== shown) { window.scrollTo(0, 0); main.focus({ preventScroll: true }); }
  shown = name;
  view(main, life, here);
}

// The server is away, and comes back

let isAway = false;
let probing = null;

onAway((now) => {
  if (now === isAway) return;
  isAway = now;
  away.hidden = !now;
  away.textContent = now ? "The server does not answer. This page goes on as soon as it does." : "";
  clearInterval(probing);
  if (now) probing = setInterval(() => get("session").catch(() => {}), 1500);
  else life.back();
});

// Logging in

onLogin(() => askForLogin());

function askForLogin() {
  if (document.getElementById("login")) return;
  life.end();
  life = new Life();
  const user = h("input", { name: "user", autocomplete: "username", required: true, spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const button = h("button", { type: "submit", class: "main" }, "Log in");
  const message = h("p", { class: "error", role: "alert", hidden: true });
  const form = h("form", { id: "login", class: "card login" }, h("h1", null, "Log in"),
    h("label", null, "User", user), h("label", null, "Password", password), message, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    message.hidden = true;
    try {
      await post("login", { user: user.value, password: password.value });
      await start();
    } catch (error) {
      message.textContent = error.message;
      message.hidden = false;
      password.value = "";
      password.focus();
    } finally {
      button.disabled = false;
    }
  });
  document.title = "Log in – Flussbett";
  show(main, form);
  user.focus();
}

document.getElementById("log-out").addEventListener("click", async () => {
  await post("logout").catch(() => {});
  location.hash = "#/";
  await start();
});

// Keys

const KEYS = [["/", "find a table"], ["g then o, t, c, f, l", "overview, tables, connections, configuration, log"],
  ["← →", "the next tab of a table"], ["?", "these keys"], ["Esc", "close"]];
let isGoing = false;

function showKeys() {
  dialog("Keys", h("dl", null, KEYS.flatMap(([keys, meaning]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, meaning)])));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    const view = VIEWS.find((each) => each.key === event.key);
    if (view) { event.preventDefault(); location.hash = `#/${view.path}`; }
    return;
  }
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  else if (event.key === "g") isGoing = true;
  else if (event.key === "?") showKeys();
});

document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.getElementById("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = `#/tables?search=${encodeURIComponent(search.value)}`;
});

// Dark and light

const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function remembered() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* It holds for this page only. */ }
});

// The beginning

async function start() {
  let session;
  for (;;) {
    try {
      session = await get("session");
      break;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1500));
    }
  }
  document.getElementById("user").textContent = session.user || "";
  document.getElementById("log-out").hidden = !session.user;
  if (session.is_open) go();
  else askForLogin();
}

const theme = remembered();
if (theme === "dark" || theme === "light") root.dataset.theme = theme;
show(document.getElementById("views"), VIEWS.map((each) => h("a", { href: `#/${each.path}`, "data-path": each.path }, each.title)));
addEventListener("hashchange", go);
start();
