// What all parts of the prompt editor share: elements, numbers as text, and what is known of every token.
// Texts of people and models are put in as text nodes only.

const HEATS = [
  ["none", "none"],
  ["score", "selector score"],
  ["deviation", "deviation of cached blocks"],
  ["left", "deviation after recomputing"],
  ["attention", "attention from the question, chosen method"],
  ["attention_full", "attention from the question, full attention"],
  ["look", "attention from the marked token"],
  ["tiles", "kept tiles"],
];
const STEPS = 24; // shades of heat
const FIELDS = ["prepare", "select", "positions", "sparse"];
const [LOW, HIGH] = [0.05, 0.99]; // quantiles between which a deviation is painted, as in heat.py
const FOCUSED = ["button", "input", "select", "textarea"];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (FOCUSED.includes(tag) || "tabindex" in attributes) node.dataset.lmSuppressShortcuts = "true"; // JupyterLab's keys move cells
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const floats = (text) => new Float32Array(bytes(text).buffer);
const percent = (share) => `${Math.round(100 * share)}%`;
const ordinal = (share) => `${Math.round(100 * share)}th`;
const short = (value) => {
  if (value === 0) return "0";
  const [size, unit] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([s]) => Math.abs(value) >= s) || [1, ""];
  return `${Number((value / size).toPrecision(3))}${unit && ` ${unit}`}`;
};
const time = (seconds) => (seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(1)} s`);
const clone = (value) => JSON.parse(JSON.stringify(value));
const moved = (list, from, to) => {
  const rest = list.filter((_, at) => at !== from);
  return [...rest.slice(0, to), list[from], ...rest.slice(to)];
};
const RATIOS = [0.05, 0.15, 0.3, 0.5]; // offered for a further column where any can be computed
// A method by its fields: a ratio counts only where tokens are selected
const methodKey = (fields) => JSON.stringify([...FIELDS.map((name) => fields[name]), ["none", "all"].includes(fields.select) ? 0 : fields.ratio]);
const oneLine = (text, most = 40) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};

// What a layout puts around a text is left out: the question alone, and `: title` of a passage (or how it begins)
const asked = (options, text) => {
  const [before, after] = options.around?.question || ["", ""];
  const inner = text.startsWith(before) && text.endsWith(after) ? text.slice(before.length, text.length - after.length) : text;
  return oneLine(inner, 400);
};
const titled = (options, text) => {
  const [before, between, after] = options.around?.passage || [];
  const end = after != null && text.startsWith(before) ? text.indexOf(between, before.length) : -1;
  return `: ${end < 0 ? oneLine(text) : oneLine(text.slice(before.length, end), 60)}`;
};

// ---------------------------------------------------------------- what is known of tokens

// Heat by token (0 to 1, and the value itself), from what Python sent.
class Heat {
  constructor(record) {
    this.record = record;
    this.maps = {};
    for (const name of ["deviation", "left", "attention", "attention_full", "tiles", "tile_map"]) {
      if (record[name]) this.maps[name] = { ...record[name], data: bytes(record[name].data) };
    }
    this.chosen = new Set(record.chosen);
    if (record.score) this.rank(floats(record.score));
  }

  rank(scores) {
    this.scores = scores;
    const finite = [...scores.keys()].filter((i) => Number.isFinite(scores[i]));
    finite.sort((a, b) => scores[a] - scores[b]);
    this.ranks = new Float32Array(this.record.length);
    finite.forEach((token, place) => (this.ranks[token] = place / Math.max(1, finite.length - 1)));
  }

  has(name) {
    return name === "none" || (name === "score" ? !!this.scores : name === "look" ? true : !!this.maps[name]);
  }

  // Where a token looks, head by head, as Python sent it; `head` -1 is the mean over heads
  see(looked) {
    this.maps.look = looked?.heads && { ...looked.heads, data: bytes(looked.heads.data) };
  }

  // [T] shares of the darkest shade; `row` is a layer (of "look": a head), -1 the mean over all of them
  shares(name, row) {
    const { length } = this.record;
    const shares = new Float32Array(length);
    if (name === "score" && this.scores) return this.ranks;
    const map = this.maps[name];
    if (!map) return shares;
    const rows = row < 0 ? [...Array(map.shape[0]).keys()] : [Math.min(row, map.shape[0] - 1)];
    for (const at of rows) {
      for (let i = 0; i < length; i++) shares[i] += map.data[at * length + i] / 255 / rows.length;
    }
    if (map.log) return stretched(shares);
    const most = shares.reduce((a, b) => Math.max(a, b), 0); // one row is painted over its own range
    if (name !== "tiles" && most > 0) for (let i = 0; i < length; i++) shares[i] /= most;
    return shares;
  }

  value(name, row, token) {
    if (name === "score") {
      const score = this.scores?.[token];
      if (!Number.isFinite(score)) return "";
      return `score ${Number(score.toPrecision(3))}, above ${percent(this.ranks[token])} of the others`;
    }
    const map = this.maps[name];
    if (!map) return "";
    const rows = row < 0 ? [...Array(map.shape[0]).keys()] : [Math.min(row, map.shape[0] - 1)];
    const mean = rows.reduce((sum, at) => sum + unpainted(map, map.data[at * this.record.length + token]), 0) / rows.length;
    return `${HEATS.find(([key]) => key === name)[1]} ${inUnits(name, mean)}`;
  }
}

// Shares over the range of their quantiles LOW to HIGH; 0 stays 0
function stretched(shares) {
  const sorted = shares.filter((share) => share > 0).sort();
  const at = (quantile) => sorted[Math.min(sorted.length - 1, Math.floor(quantile * sorted.length))] ?? 0;
  const low = at(LOW), high = at(HIGH);
  return shares.map((share) => (share <= 0 ? 0 : high > low ? Math.max(0, Math.min(1, (share - low) / (high - low))) : 1));
}

// The value that a byte of a map stands for, and a value of a map as text
const unpainted = (map, byte) => (map.log ? (byte ? map.low * (map.high / map.low) ** (byte / 255) : 0) : (byte / 255) * map.high);
const inUnits = (name, value) => (/attention|look|tile/.test(name) ? `${Number((100 * value).toPrecision(2))}%` : `${Number(value.toPrecision(2))}`);
