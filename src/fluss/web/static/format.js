// Numbers and times for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${digits(value)} ${UNITS[unit]}`;
}

export function digits(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(3)).toString();
}

export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${digits(value / 1000)} s` : `${digits(value)} ms`;
}

export function seconds(value) {
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function moment(epochMs) {
  if (epochMs === null || epochMs === undefined) return "–";
  const date = new Date(epochMs);
  const pad = (number, width = 2) => String(number).padStart(width, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}
