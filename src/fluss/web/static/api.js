// Asking the server, and noticing when it is away.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const listeners = { away: () => {}, login: () => {} };

export function onAway(listener) { listeners.away = listener; }
export function onLogin(listener) { listeners.login = listener; }

export function url(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

export function tablePath(database, table) {
  return `tables/${encodeURIComponent(database)}/${encodeURIComponent(table)}`;
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    listeners.away(true);
    throw new ApiError("The server does not answer.", 0);
  }
  listeners.away(false);
  return response;
}

async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error || message;
  } catch { /* Not JSON: the status has to do. */ }
  return new ApiError(message, response.status);
}

export async function get(path, parameters, signal) {
  const response = await ask(url(path, parameters), { signal });
  if (response.status === 401) listeners.login();
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export async function post(path, body) {
  const response = await ask(url(path), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body || {}),
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// Calls back with every message of a live tail until it is aborted; connects again when the server was away.
export async function follow(path, parameters, signal, onMessage, onState) {
  while (!signal.aborted) {
    try {
      const response = await ask(url(path, parameters), { signal });
      if (!response.ok) throw await refusal(response);
      onState("live");
      await readEvents(response.body.getReader(), onMessage);
      onState("ended; starting again");
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (error instanceof ApiError && error.status !== 0 && error.status !== 503) throw error;
      listeners.away(true);
      onState("the server is away; trying again");
    }
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

async function readEvents(reader, onMessage) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) onMessage(JSON.parse(event.slice(6)));
      else if (event.startsWith("event: end")) return;
    }
  }
}
