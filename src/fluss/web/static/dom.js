// Elements are made of texts: nothing that comes from a server is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

// What stands where an answer is awaited.
export function loading() {
  return h("p", { class: "muted" }, "Loading …");
}

export function problem(error) {
  return h("p", { class: "error", role: "alert" }, error.message || String(error));
}

// A table that scrolls inside its own frame, which the keyboard can reach.
export function grid(label, columns, rows) {
  const head = h("tr", null, columns.map((column) =>
    h("th", { scope: "col", class: column.number ? "number" : null }, column.title,
      column.type ? h("span", { class: "type" }, ` ${column.type}`) : null,
      column.hidden ? h("span", { class: "hidden" }, column.hidden) : null)));
  const body = h("tbody", null, rows);
  const frame = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("thead", null, head), body));
  return { frame, body };
}

export function dialog(title, ...children) {
  const element = document.getElementById("dialog");
  const close = h("button", { type: "button", class: "main", onclick: () => element.close() }, "Close");
  show(element, h("h2", { id: "dialog-title" }, title), ...children, close);
  if (!element.open) element.showModal();
  close.focus();
}
