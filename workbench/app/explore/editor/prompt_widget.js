// A prompt one can touch: blocks as text, the heat of every token, two answers side by side, and linked maps.
// `model` is anywidget's model, or the one that `pageModel` makes of results computed beforehand (a page without a kernel).
// Texts of people and models are put in as text nodes only.

const RESULTS = ["text", "answers", "bill", "heat"];
const HEATS = [
  ["none", "nothing"],
  ["score", "score of the selector"],
  ["deviation", "deviation of the cached blocks"],
  ["left", "deviation after recomputing"],
  ["attention", "attention from the question, chosen method"],
  ["attention_full", "attention from the question, full attention"],
  ["tiles", "kept tiles"],
];
const ROWS = [
  ["question", "question"],
  ["recomputed", "recomputed"],
  ["encoded", "encoded now"],
  ["shifted", "reused, shifted"],
  ["reused", "reused in place"],
];
const STEPS = 24; // shades of heat
const FIELDS = ["prepare", "select", "positions", "sparse"];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
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
const short = (value) => {
  if (value === 0) return "0";
  const [size, unit] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([s]) => Math.abs(value) >= s) || [1, ""];
  return `${Number((value / size).toPrecision(3))}${unit && ` ${unit}`}`;
};
const time = (seconds) => (seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(1)} s`);
const clone = (value) => JSON.parse(JSON.stringify(value));
const oneLine = (text, most = 40) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
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
    return name === "none" || (name === "score" ? !!this.scores : !!this.maps[name]);
  }

  // [T] shares of the darkest shade; layer -1 is the mean over layers
  shares(name, layer) {
    const { length } = this.record;
    const shares = new Float32Array(length);
    if (name === "score" && this.scores) return this.ranks;
    const map = this.maps[name];
    if (!map) return shares;
    const layers = layer < 0 ? [...Array(map.shape[0]).keys()] : [Math.min(layer, map.shape[0] - 1)];
    for (const at of layers) {
      for (let i = 0; i < length; i++) shares[i] += map.data[at * length + i] / 255 / layers.length;
    }
    const most = shares.reduce((a, b) => Math.max(a, b), 0); // one layer is painted over its own range
    if (name !== "tiles" && most > 0) for (let i = 0; i < length; i++) shares[i] /= most;
    return shares;
  }

  value(name, layer, token) {
    if (name === "score") {
      const score = this.scores?.[token];
      if (!Number.isFinite(score)) return "";
      return `score ${Number(score.toPrecision(3))}, above ${percent(this.ranks[token])} of the others`;
    }
    const map = this.maps[name];
    if (!map) return "";
    const layers = layer < 0 ? [...Array(map.shape[0]).keys()] : [layer];
    const shares = layers.map((at) => map.data[at * this.record.length + token] / 255);
    const values = shares.map((share) => (map.log ? (share ? map.low * (map.high / map.low) ** share : 0) : share * map.high));
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const label = HEATS.find(([key]) => key === name)[1];
    return `${label} ${name.startsWith("attention") || name === "tiles" ? `${Number((100 * mean).toPrecision(2))}%` : Number(mean.toPrecision(2))}`;
  }
}

// ---------------------------------------------------------------- the widget

class PromptView {
  constructor(model, el) {
    this.model = model;
    this.options = model.get("options");
    this.want = clone(model.get("wanted"));
    this.past = [];
    this.first = clone(this.want);
    this.layer = -1;
    this.heatName = "score";
    this.hovered = null;
    this.pinned = model.get("token") ?? null;
    this.spans = [];
    this.editing = null;
    this.clean = [];
    this.root = make("div", { class: `wb-prompt${this.options.long ? " wb-long" : ""}`, role: "group", "aria-label": "A prompt one can touch", "data-lm-suppress-shortcuts": "true" });
    el.append(this.root);
    this.build();
    this.listen();
    this.theme();
    this.drawAll();
  }

  get editable() {
    return this.options.editable !== false;
  }

  build() {
    const controls = make("div", { class: "wb-bar", role: "toolbar", "aria-label": "Method" });
    this.menus = {};
    if (this.options.methods?.length) {
      this.menus.method = make("select", { onchange: () => this.preset() });
      controls.append(this.labelled("method", this.menus.method));
    }
    this.menus.select = make("select", { onchange: (event) => this.choose("select", event.target.value) });
    controls.append(this.labelled("recompute by", this.menus.select));
    this.ratio = make("input", { type: "range", oninput: () => this.slide(), onchange: () => this.slide(true) });
    this.ratioOut = make("output", { class: "wb-number" });
    controls.append(this.labelled("recomputed", this.ratio, this.ratioOut));
    for (const [name, label] of [["prepare", "cached"], ["positions", "positions"], ["sparse", "tiles"]]) {
      this.menus[name] = make("select", { onchange: (event) => this.choose(name, event.target.value) });
      controls.append(this.labelled(label, this.menus[name]));
    }
    this.undo = make("button", { type: "button", onclick: () => this.back() }, "Undo");
    this.reset = make("button", { type: "button", onclick: () => this.change((want) => Object.assign(want, clone(this.first))) }, "Reset");
    controls.append(make("span", { class: "wb-buttons" }, this.undo, this.reset));

    this.heatMenu = make("select", { onchange: () => { this.heatName = this.heatMenu.value; this.paint(); this.drawMaps(); } });
    this.layerSlider = make("input", { type: "range", min: -1, value: -1, oninput: () => { this.layer = Number(this.layerSlider.value); this.paint(); this.drawMaps(); } });
    this.layerOut = make("output", { class: "wb-number wb-wide" });
    const legend = make("span", { class: "wb-legend", "aria-hidden": "true" }, "less", make("span", { class: "wb-ramp" }), "more", make("span", { class: "wb-frame" }, "framed"), "recomputed");
    const colours = make("div", { class: "wb-bar", role: "toolbar", "aria-label": "Colour of the tokens" },
      this.labelled("colour", this.heatMenu), this.labelled("layer", this.layerSlider, this.layerOut), legend);

    this.detail = make("p", { class: "wb-detail", role: "status", "aria-live": "polite" });
    this.blocks = make("div", { class: "wb-blocks", role: "list", "aria-label": "Blocks of the prompt" });
    this.add = make("button", { type: "button", class: "wb-add", onclick: () => this.addBlock() }, "+ Add a passage");
    const left = make("div", { class: "wb-left" }, this.detail, this.blocks, this.editable ? this.add : null);
    if (!this.editable && this.options.note) left.append(make("p", { class: "wb-note" }, this.options.note));

    this.status = make("p", { class: "wb-status", role: "status", "aria-live": "polite" });
    this.cards = make("div", { class: "wb-cards" });
    this.first_ = make("div", { class: "wb-first" });
    this.bill = make("div", { class: "wb-bill" });
    const right = make("div", { class: "wb-right" }, this.status, this.cards, this.first_, this.bill);

    this.maps = make("div", { class: "wb-maps" });
    this.canvases = {};
    for (const [name, title] of [["mask", "Who sees whom"], ["deviation", "Deviation"], ["attention", "Attention from the question"], ["tiles", "Sparse tiles"]]) {
      const canvas = make("canvas", { role: "img", "aria-label": title });
      const caption = make("figcaption", {}, make("b", {}, title), make("span", {}));
      canvas.addEventListener("pointermove", (event) => this.mark(this.tokenAt(canvas, event), true));
      canvas.addEventListener("pointerleave", () => this.mark(null, true));
      canvas.addEventListener("click", (event) => this.mark(this.tokenAt(canvas, event), false));
      this.maps.append(make("figure", { class: "wb-map" }, caption, canvas));
      this.canvases[name] = { canvas, caption };
    }
    this.root.append(controls, colours, make("div", { class: "wb-columns" }, left, right), this.maps);
    this.blocks.addEventListener("pointerover", (event) => this.mark(this.tokenOf(event.target), true));
    this.blocks.addEventListener("pointerleave", () => this.mark(null, true));
    this.blocks.addEventListener("click", (event) => {
      if (!window.getSelection()?.toString() && event.target.closest(".wb-text")) this.mark(this.tokenOf(event.target), false);
    });
  }

  labelled(label, ...inputs) {
    return make("label", { class: "wb-field" }, make("span", {}, label), ...inputs);
  }

  listen() {
    const on = (name, action) => {
      const listener = () => action();
      this.model.on(`change:${name}`, listener);
      this.clean.push(() => this.model.off(`change:${name}`, listener));
    };
    on("wanted", () => {
      const wanted = this.model.get("wanted");
      if (wanted.revision === this.want.revision && JSON.stringify(wanted) === JSON.stringify(this.want)) return;
      this.want = clone(wanted);
      this.drawControls();
      this.drawBlocks();
      this.drawResults();
    });
    on("text", () => { this.drawBlocks(); this.drawResults(); });
    for (const name of ["answers", "bill"]) on(name, () => this.drawResults());
    on("heat", () => { this.readHeat(); this.drawControls(); this.paint(); this.drawResults(); this.drawMaps(); });
    for (const name of ["busy", "problem"]) on(name, () => this.drawStatus());
    on("token", () => { this.pinned = this.model.get("token") ?? null; this.showMark(); });
    const watch = new MutationObserver(() => this.theme());
    for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-jp-theme-name", "data-theme", "style"] });
    const media = window.matchMedia("(prefers-color-scheme: dark)");
    const themed = () => this.theme();
    media.addEventListener("change", themed);
    let width = 0;
    const size = new ResizeObserver(() => {
      if (Math.abs(this.root.clientWidth - width) < 2) return;
      width = this.root.clientWidth;
      this.theme();
    });
    size.observe(this.root);
    this.clean.push(() => watch.disconnect(), () => size.disconnect(), () => media.removeEventListener("change", themed));
  }

  destroy() {
    this.clean.forEach((action) => action());
    this.root.remove();
  }

  // ------------------------------------------------------------ changes

  change(edit, keep = true) {
    const before = clone(this.want);
    edit(this.want);
    this.want.revision = before.revision + 1;
    if (keep) this.past.push(before);
    if (this.past.length > 100) this.past.shift();
    this.send();
    this.drawControls();
    this.drawBlocks();
    this.drawResults();
    this.drawMaps();
  }

  send() {
    this.model.set("wanted", clone(this.want));
    this.model.save_changes();
  }

  back() {
    const before = this.past.pop();
    if (before) this.change((want) => Object.assign(want, before), false);
  }

  choose(name, value) {
    this.change((want) => (want[name] = value));
  }

  preset() {
    const method = this.options.methods[Number(this.menus.method.value)];
    if (method) this.change((want) => Object.assign(want, clone(method.fields)));
  }

  slide(end = false) {
    const value = this.options.ratios ? this.options.ratios[Number(this.ratio.value)] : Number(this.ratio.value) / 100;
    this.ratioOut.value = percent(value);
    clearTimeout(this.sliding);
    if (value === this.want.ratio) return;
    const act = () => {
      this.slid = performance.now();
      this.change((want) => (want.ratio = value));
    };
    const since = performance.now() - (this.slid || 0); // at most every 80 ms while it moves
    if (end || since > 80) act();
    else this.sliding = setTimeout(act, 80 - since);
  }

  movable(index) {
    return this.want.blocks[index]?.kind === "passage";
  }

  move(id, to) {
    const from = this.want.blocks.findIndex((block) => block.id === id);
    const places = this.want.blocks.map((_, i) => i).filter((i) => this.movable(i));
    const target = Math.max(places[0], Math.min(places.at(-1), to));
    if (from === target) return;
    this.change((want) => want.blocks.splice(target, 0, ...want.blocks.splice(from, 1)));
    this.say(`Passage ${oneLine(this.want.blocks[target].text)} is now in place ${places.indexOf(target) + 1} of ${places.length}.`);
    this.blocks.querySelector(`[data-id="${CSS.escape(id)}"] .wb-grip`)?.focus();
  }

  removeBlock(id) {
    const at = this.want.blocks.findIndex((block) => block.id === id);
    this.change((want) => want.blocks.splice(at, 1));
    this.blocks.querySelectorAll(".wb-grip")[Math.min(at, this.want.blocks.length - 2)]?.focus();
  }

  addBlock() {
    const id = `n${Date.now().toString(36)}${this.past.length}`;
    const at = this.want.blocks.length - 1;
    this.adding = { id, at };
    this.editing = id;
    this.drawBlocks();
  }

  endEdit(id, text) {
    this.editing = null;
    const adding = this.adding;
    this.adding = null;
    const changed = text != null && text.trim() && text !== this.want.blocks.find((block) => block.id === id)?.text;
    if (!changed) this.drawBlocks();
    else if (adding) this.change((want) => want.blocks.splice(adding.at, 0, { id, text: text.endsWith("\n") ? text : `${text}\n`, kind: "passage" }));
    else this.change((want) => (want.blocks.find((block) => block.id === id).text = text));
    this.blocks.querySelector(`[data-id="${CSS.escape(id)}"] .wb-edit`)?.focus();
  }

  // ------------------------------------------------------------ drawing

  drawAll() {
    this.readHeat();
    this.drawControls();
    this.drawBlocks();
    this.drawResults();
    this.drawMaps();
    this.showMark();
  }

  readHeat() {
    const record = this.model.get("heat");
    this.heat = record?.length ? new Heat(record) : null;
    const text = this.model.get("text");
    if (this.heat) this.heat.blocks = new Map((text?.revision === record.revision ? text.blocks : []).map((block) => [block.id, block]));
  }

  isStale(name) {
    const record = this.model.get(name);
    return !record || record.revision !== this.want.revision;
  }

  fill(select, entries, value) {
    const known = [...select.options].map((option) => option.value).join("\n");
    if (known !== entries.map((one) => String(one.value)).join("\n")) {
      select.replaceChildren(...entries.map((one) => make("option", { value: one.value }, one.title)));
    }
    for (const [i, one] of entries.entries()) select.options[i].disabled = !!one.disabled;
    if (![...select.options].some((option) => option.value === String(value))) select.append(make("option", { value }, String(value)));
    select.value = String(value);
    select.closest("label").hidden = entries.length < 2;
  }

  drawControls() {
    for (const name of FIELDS) this.fill(this.menus[name], this.options[name] || [], this.want[name]);
    if (this.menus.method) {
      const methods = this.options.methods.map((one, i) => ({ value: i, title: one.title }));
      const now = this.options.methods.findIndex((one) => Object.entries(one.fields).every(([name, value]) => name === "ratio" || this.want[name] === value));
      this.fill(this.menus.method, [...methods, { value: -1, title: "own choice", disabled: true }], now);
    }
    const ratios = this.options.ratios;
    Object.assign(this.ratio, ratios ? { min: 0, max: ratios.length - 1, step: 1 } : { min: 0, max: 100, step: 1 });
    const idle = this.want.select === "none" || this.want.select === "all";
    if (document.activeElement !== this.ratio) this.ratio.value = ratios ? Math.max(0, ratios.indexOf(this.want.ratio)) : Math.round(100 * this.want.ratio);
    this.ratio.disabled = idle;
    this.ratio.setAttribute("aria-valuetext", `${percent(this.want.ratio)} of the passages' tokens`);
    this.ratioOut.value = this.want.select === "none" ? "none" : this.want.select === "all" ? "all" : percent(this.want.ratio);
    this.undo.disabled = !this.past.length;
    this.reset.disabled = JSON.stringify({ ...this.want, revision: 0 }) === JSON.stringify({ ...this.first, revision: 0 });
    this.fill(this.heatMenu, HEATS.map(([value, title]) => ({ value, title: `${title}${this.heat && !this.heat.has(value) ? " –" : ""}`, disabled: !!this.heat && !this.heat.has(value) })), this.heatName);
    [...this.heatMenu.options].forEach((option, i) => HEATS[i] && (option.textContent = HEATS[i][1]));
    if (this.heat) this.layerSlider.max = this.heat.record.layers - 1;
    this.layerOut.value = this.layer < 0 ? "all" : this.layer;
  }

  drawBlocks() {
    const focus = this.root.contains(document.activeElement) ? document.activeElement.closest?.(".wb-block")?.dataset.id : null;
    const kind = focus && ["wb-grip", "wb-edit", "wb-remove"].find((name) => document.activeElement.classList.contains(name));
    const text = this.model.get("text");
    const known = new Map((text?.blocks || []).map((block) => [block.id, block]));
    this.texts = new Map((text?.blocks || []).map((block) => [block.id, block.text]));
    const blocks = clone(this.want.blocks);
    if (this.adding) blocks.splice(this.adding.at, 0, { id: this.adding.id, text: this.options.template || "", kind: "passage" });
    const passages = blocks.filter((block) => block.kind === "passage").length;
    this.spans = [];
    let place = 0;
    this.blocks.replaceChildren(...blocks.map((block, index) => {
      const number = block.kind === "passage" ? ++place : 0;
      return this.block(block, index, number, passages, known.get(block.id));
    }));
    if (kind) this.blocks.querySelector(`[data-id="${CSS.escape(focus)}"] .${kind}`)?.focus({ preventScroll: true });
    this.paint();
  }

  block(block, index, number, passages, known) {
    const name = block.kind === "passage" ? `${number}` : block.kind;
    const label = block.kind === "passage" ? `passage ${number}` : block.kind === "system" ? "the system block" : "the question";
    const supporting = this.options.supporting?.includes(block.id);
    const node = make("section", { class: `wb-block wb-${block.kind}`, role: "listitem", "data-id": block.id, "aria-label": label });
    node.style.setProperty("--wb-block", block.kind === "passage" ? `var(--wb-c${this.colour(block.id)})` : "var(--wb-muted)");
    const head = make("header", {});
    if (block.kind === "passage") {
      const grip = make("button", { type: "button", class: "wb-grip", title: "Drag, or press the arrow keys, to move", "aria-label": `Move ${label} of ${passages}: up and down arrows` }, "⠿");
      grip.addEventListener("keydown", (event) => this.gripKey(event, block.id));
      grip.addEventListener("pointerdown", (event) => this.drag(event, block.id, node));
      head.append(grip);
    }
    head.append(make("span", { class: "wb-name" }, name, supporting ? make("span", { title: "the answer needs it", "aria-label": "the answer needs it" }, " ★") : null));
    head.append(make("span", { class: "wb-fate" }));
    if (this.editable && this.editing !== block.id) {
      head.append(make("button", { type: "button", class: "wb-edit", "aria-label": `Edit ${label}`, onclick: () => { this.editing = block.id; this.drawBlocks(); } }, "Edit"));
    }
    if (block.kind === "passage" && this.editing !== block.id) {
      head.append(make("button", { type: "button", class: "wb-remove", "aria-label": `Remove ${label}`, disabled: this.want.blocks.length < 3 || passages < 2, onclick: () => this.removeBlock(block.id) }, "×"));
    }
    node.append(head, this.editing === block.id ? this.editor(block, label) : this.paragraph(block, label, known));
    return node;
  }

  colour(id) { // a block keeps its colour wherever it stands
    let sum = 0;
    for (const char of id) sum += char.charCodeAt(0);
    return sum % 6;
  }

  editor(block, label) {
    const area = make("textarea", { rows: Math.min(12, 2 + Math.ceil(block.text.length / 70)), "aria-label": `Text of ${label}`, spellcheck: "false" });
    area.value = block.text;
    area.addEventListener("keydown", (event) => {
      event.stopPropagation(); // JupyterLab has keys of its own
      if (event.key === "Escape") this.endEdit(block.id, null);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.endEdit(block.id, area.value); }
    });
    requestAnimationFrame(() => area.focus());
    return make("div", { class: "wb-editor" }, area, make("span", { class: "wb-buttons" },
      make("button", { type: "button", onclick: () => this.endEdit(block.id, area.value) }, "Save"),
      make("button", { type: "button", onclick: () => this.endEdit(block.id, null) }, "Cancel"),
      make("small", {}, "Ctrl+Enter saves, Esc leaves it as it was")));
  }

  paragraph(block, label, known) {
    const node = make("div", { class: "wb-text", tabindex: 0, role: "textbox", "aria-readonly": "true", "aria-multiline": "true", "aria-label": `Text of ${label}; left and right arrows go from token to token` });
    node.addEventListener("keydown", (event) => this.textKey(event, node));
    if (known?.text !== block.text) {
      node.append(make("span", { class: "wb-untold" }, block.text)); // its tokens are not there yet
      return node;
    }
    known.tokens.forEach((token, offset) => {
      const span = make("span", { class: token.trim() ? "wb-t" : token.includes("\n") ? "wb-t wb-nl" : "wb-t" }, token);
      span.dataset.i = known.start + offset;
      Object.assign(span, { wbBlock: block.id, wbOffset: offset });
      this.spans[known.start + offset] = span;
      node.append(span);
    });
    return node;
  }

  theme() {
    const paper = getComputedStyle(this.root).backgroundColor.match(/[\d.]+/g)?.map(Number) || [255, 255, 255];
    const [r, g, b] = paper;
    this.dark = 0.299 * r + 0.587 * g + 0.114 * b < 128;
    this.root.classList.toggle("wb-dark", this.dark);
    const style = getComputedStyle(this.root);
    this.ink = style.getPropertyValue("--wb-ink").trim();
    this.heatColour = this.dark ? [193, 98, 8] : [240, 150, 30];
    this.paper = paper.slice(0, 3);
    this.shades = [...Array(STEPS + 1).keys()].map((step) => (step ? `rgba(${this.heatColour}, ${(0.92 * step) / STEPS})` : ""));
    this.paint();
    this.drawMaps();
  }

  paint() {
    if (!this.shades) return;
    this.layerOut.value = this.layer < 0 ? "all" : this.layer;
    const shares = this.heat?.shares(this.heatName, this.layer);
    this.spans.forEach((span) => {
      const token = this.known(span); // a block that was moved keeps its colours until the new ones are there
      span.style.backgroundColor = token == null ? "" : this.shades[Math.round(STEPS * Math.max(0, Math.min(1, shares[token])))];
      span.classList.toggle("wb-chosen", token != null && this.heat.chosen.has(token));
    });
    this.blocks.classList.toggle("wb-stale", this.isStale("heat"));
    this.showMark();
  }

  // Where the heat has this token: its block may have moved since
  known(span) {
    const block = this.heat?.blocks.get(span.wbBlock);
    return block && block.text === this.texts.get(span.wbBlock) ? block.start + span.wbOffset : null;
  }

  drawStatus() {
    const problem = this.model.get("problem");
    const stale = RESULTS.some((name) => this.isStale(name));
    this.status.classList.toggle("wb-problem", !!problem);
    this.root.dataset.revision = this.want.revision;
    this.root.dataset.stale = stale || problem ? "stale" : "";
    const text = problem || (stale ? `${this.model.get("busy") || "Working"}… what is pale is older.` : "Up to date.");
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  drawResults() {
    this.drawStatus();
    const answers = this.model.get("answers") || {};
    const stale = this.isStale("answers");
    const title = (this.options.select || []).find((one) => one.value === this.want.select)?.title;
    const reuse = (this.options.prepare || []).find((one) => one.value === this.want.prepare)?.reuse || "reuse";
    const method = this.want.select === "none" ? reuse : this.want.select === "all" ? "all recomputed" : `${title}, ${percent(this.want.ratio)}`;
    this.cards.replaceChildren(this.card("full attention", answers.full, stale || !answers.full, "full", answers.expected), this.card(method, answers.method, stale, "method", answers.expected));
    this.drawFirst(answers, stale);
    this.drawBill();
  }

  card(title, answer, stale, name, expected) {
    const wrong = expected?.length ? `✗ expected: ${expected.slice(0, 2).join(" or ")}` : "✗ wrong";
    const right = answer?.right == null ? null : make("span", { class: answer.right ? "wb-right-sign" : "wb-wrong-sign" }, answer.right ? "✓ right" : wrong);
    const badge = stale ? make("span", { class: "wb-badge" }, answer ? "older answer" : "on its way") : answer && !answer.done ? make("span", { class: "wb-badge" }, "streaming") : null;
    const text = make("p", { class: "wb-answer" }, answer?.text || (answer?.done ? "(nothing)" : "…"));
    return make("article", { class: `wb-card wb-${name}${stale ? " wb-stale" : ""}`, "aria-label": `Answer of ${title}` }, make("h4", {}, title, badge), text, right);
  }

  drawFirst(answers, stale) {
    this.first_.classList.toggle("wb-stale", stale);
    if (!answers.first) return this.first_.replaceChildren();
    const kl = answers.kl == null ? null : make("p", { class: "wb-kl" }, make("b", {}, `KL ${answers.kl < 0.0005 ? "below 0.001" : answers.kl.toFixed(3)} nats`), answers.agree ? " · same likeliest first token" : " · another first token is likeliest");
    const rows = answers.first.map((one) => make("tr", {}, make("th", { scope: "row" }, JSON.stringify(one.token)),
      ...["full", "method"].map((name) => {
        const bar = make("span", { class: `wb-p wb-p-${name}` });
        bar.style.width = `${Math.max(0.5, 100 * (one[name] ?? 0))}%`;
        return make("td", {}, make("span", { class: "wb-track" }, bar), make("small", {}, one[name] == null ? "–" : one[name] < 0.001 ? "<0.1%" : `${(100 * one[name]).toFixed(1)}%`));
      })));
    const table = make("table", { class: "wb-distribution" }, make("caption", {}, "First token"), make("thead", {}, make("tr", {}, make("th", {}, ""), make("th", { scope: "col" }, "full attention"), make("th", { scope: "col" }, "chosen method"))), make("tbody", {}, ...rows));
    this.first_.replaceChildren(...[kl, table].filter(Boolean));
  }

  drawBill() {
    const bill = this.model.get("bill");
    const stale = this.isStale("bill");
    this.bill.classList.toggle("wb-stale", stale);
    if (!bill?.rows) return this.bill.replaceChildren();
    const seconds = this.model.get("answers")?.seconds_full;
    const bar = (parts) => make("span", { class: "wb-stack", "aria-hidden": "true" }, ...parts.filter(([, count]) => count).map(([name, count, label]) => {
      const part = make("span", { class: `wb-part wb-part-${name}`, title: `${label}: ${count} tokens` });
      part.style.width = `${(100 * count) / bill.length}%`;
      return part;
    }));
    const paid = (rows, flops, wait) => `${rows.toLocaleString("en")} rows · ${short(flops)}FLOPs${wait == null ? "" : ` · TTFT ${time(wait)}`}`;
    const encoding = bill.flops.encoding ? `, of which ${percent(bill.flops.encoding / bill.flops.method)} encodes what is not cached yet` : "";
    this.bill.replaceChildren(
      make("h4", {}, `What it took, of ${bill.length.toLocaleString("en")} tokens`),
      make("div", { class: "wb-line" }, make("span", {}, "full"), bar([["full", bill.length, "computed"]]), make("small", {}, paid(bill.length, bill.flops.full, seconds))),
      make("div", { class: "wb-line" }, make("span", {}, "chosen"), bar(ROWS.map(([name, label]) => [name, bill.rows[name], label])), make("small", {}, paid(bill.computed, bill.flops.method, bill.seconds.method) + encoding)),
      make("ul", { class: "wb-key" }, ...ROWS.filter(([name]) => bill.rows[name]).map(([name, label]) => make("li", {}, make("span", { class: `wb-part wb-part-${name}` }), `${label} ${bill.rows[name]}`))));
    const fates = this.blocks.querySelectorAll(".wb-block");
    const order = (this.model.get("text")?.blocks || []).map((block) => block.id);
    fates.forEach((node) => {
      const at = order.indexOf(node.dataset.id);
      const fate = bill.blocks[at];
      const shift = fate?.shift ? ` ${fate.shift > 0 ? "+" : "−"}${Math.abs(fate.shift)}` : "";
      const text = !fate ? (node.classList.contains("wb-question") ? "always computed" : "") : fate.status === "encoded" ? "encoded now" : fate.shift ? `reused, shifted${shift}` : "reused in place";
      node.querySelector(".wb-fate").textContent = stale ? "" : text;
    });
  }

  // ------------------------------------------------------------ tokens and maps

  tokenOf(target) {
    const span = target.closest?.("[data-i]");
    return span ? Number(span.dataset.i) : null;
  }

  get marked() {
    return this.hovered ?? this.pinned;
  }

  mark(token, hover) {
    if (hover) {
      if (this.hovered === token) return;
      this.hovered = token;
    } else {
      this.pinned = this.pinned === token ? null : token;
    }
    this.showMark();
    clearTimeout(this.telling); // figures elsewhere follow through the model
    this.telling = setTimeout(() => {
      if (this.model.get(hover ? "hovered" : "token") === (hover ? this.hovered : this.pinned)) return;
      this.model.set(hover ? "hovered" : "token", hover ? this.hovered : this.pinned);
      this.model.save_changes();
    }, hover ? 120 : 0);
  }

  showMark() {
    this.root.querySelectorAll(".wb-marked").forEach((span) => span.classList.remove("wb-marked"));
    const token = this.marked;
    const span = token == null ? null : this.spans[token];
    span?.classList.add("wb-marked");
    const stale = this.isStale("heat") || !this.heat;
    const values = !span || stale ? [] : [...new Set([this.heatName, "score", "deviation", "attention_full", "tiles"])].map((name) => this.heat.value(name, this.layer, token)).filter((text) => text);
    const fate = stale || !span ? "" : span.closest(".wb-question") ? "always computed" : this.heat.chosen.has(token) ? "recomputed" : "reused";
    this.detail.textContent = span ? [`${JSON.stringify(span.textContent)} at ${token}`, fate, ...values].filter(Boolean).join(" · ") : "Rest on a token, or go through the text with the arrow keys: its values stand here, and the maps mark it. A click keeps the mark.";
    this.drawMarks();
  }

  textKey(event, node) {
    const tokens = [...node.querySelectorAll("[data-i]")].map((span) => Number(span.dataset.i));
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") this.pinned = null;
    else if (!step || event.shiftKey || !tokens.length) return;
    else {
      const at = tokens.indexOf(this.pinned);
      this.pinned = tokens[Math.max(0, Math.min(tokens.length - 1, at < 0 && step > 0 ? 0 : at + step))];
    }
    event.preventDefault();
    event.stopPropagation();
    this.showMark();
    this.model.set("token", this.pinned);
    this.model.save_changes();
  }

  gripKey(event, id) {
    const at = this.want.blocks.findIndex((block) => block.id === id);
    const to = { ArrowUp: at - 1, ArrowLeft: at - 1, ArrowDown: at + 1, ArrowRight: at + 1, Home: 0, End: 1e9 }[event.key];
    if (to == null) return;
    event.preventDefault();
    event.stopPropagation();
    this.move(id, to);
  }

  drag(event, id, node) {
    if (event.button) return;
    event.preventDefault();
    const grip = event.currentTarget;
    grip.focus();
    node.classList.add("wb-dragged");
    const move = (moved) => {
      moved.preventDefault();
      const rest = [...this.blocks.children].filter((child) => child !== node && child.classList.contains("wb-passage"));
      const after = rest.find((child) => moved.clientY < child.getBoundingClientRect().top + child.offsetHeight / 2);
      const anchor = after || rest.at(-1)?.nextSibling;
      if (anchor !== node && anchor !== node.nextSibling) this.blocks.insertBefore(node, anchor);
    };
    const end = (ended) => { // the window is listened to: a node that moves in the document loses a captured pointer
      for (const [name, action] of Object.entries(actions)) window.removeEventListener(name, action, true);
      node.classList.remove("wb-dragged");
      const to = [...this.blocks.children].indexOf(node);
      if (ended.type === "pointerup" && to !== this.want.blocks.findIndex((block) => block.id === id)) return this.move(id, to);
      this.drawBlocks();
      this.drawBill();
    };
    const escape = (pressed) => pressed.key === "Escape" && end(pressed);
    const actions = { pointermove: move, pointerup: end, pointercancel: end, keydown: escape };
    for (const [name, action] of Object.entries(actions)) window.addEventListener(name, action, true);
  }

  say(text) {
    this.detail.textContent = text;
  }

  tokenAt(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const length = this.heat?.record.length;
    const token = Math.floor(((event.clientX - box.left) / box.width) * (length || 0));
    return length && token >= 0 && token < length ? token : null;
  }

  drawMaps() {
    if (!this.shades) return;
    this.pictures = {};
    const stale = this.isStale("heat");
    this.maps.classList.toggle("wb-stale", stale);
    for (const [name, { canvas, caption }] of Object.entries(this.canvases)) {
      const told = this.heat ? this[`draw_${name}`](canvas) : "";
      caption.lastChild.textContent = told;
      canvas.setAttribute("aria-label", `${caption.firstChild.textContent}: ${told}`);
    }
    this.drawMarks();
  }

  surface(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(80, canvas.clientWidth || 240), height = Math.max(60, canvas.clientHeight || 150);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    return canvas.getContext("2d", { willReadFrequently: true });
  }

  // A matrix of bytes [rows, columns] over the whole canvas
  matrix(canvas, data, rows, columns) {
    const context = this.surface(canvas);
    const image = new ImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const share = (0.95 * data[i]) / 255;
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = this.paper[c] + share * (this.heatColour[c] - this.paper[c]);
      image.data[4 * i + 3] = 255;
    }
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = columns > canvas.width;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    return context;
  }

  edges(context, canvas) {
    const blocks = this.model.get("text")?.blocks || [];
    context.fillStyle = this.dark ? "rgba(255,255,255,.35)" : "rgba(0,0,0,.3)";
    for (const block of blocks.slice(1)) context.fillRect(Math.round((block.start / this.heat.record.length) * canvas.width), 0, 1, canvas.height);
  }

  draw_mask(canvas) {
    const context = this.surface(canvas);
    const { length, system } = this.heat.record;
    const text = this.model.get("text");
    const starts = (text?.blocks || []).map((block) => block.start);
    const question = starts.at(-1) ?? length;
    const style = getComputedStyle(this.root);
    const colours = [0, 1, 2, 3, 4, 5].map((i) => style.getPropertyValue(`--wb-c${i}`).trim());
    context.fillStyle = `rgb(${this.paper})`;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const wide = (token) => (token / length) * canvas.width;
    for (let y = 0; y < canvas.height; y++) {
      const row = Math.floor((y / canvas.height) * length);
      const block = starts.findLastIndex((start) => start <= row);
      const computed = row >= question || this.heat.chosen.has(row);
      context.globalAlpha = computed ? 0.9 : 0.45;
      context.fillStyle = computed ? `rgb(${this.heatColour})` : text.blocks[block].kind === "passage" ? colours[this.colour(text.blocks[block].id)] : style.getPropertyValue("--wb-muted").trim();
      if (computed) context.fillRect(0, y, wide(row + 1), 1);
      else {
        context.fillRect(wide(starts[block]), y, wide(row + 1) - wide(starts[block]), 1);
        if (block) context.fillRect(0, y, wide(system), 1);
      }
    }
    context.globalAlpha = 1;
    const share = (length - question + this.heat.chosen.size) / length;
    return `row by row, keys across; computed over all before it: ${percent(share)} of the rows`;
  }

  layered(canvas, name, told) {
    const map = this.heat.maps[name];
    const [layers, length] = map.shape;
    const data = new Uint8Array(map.data);
    if (!map.log) for (let i = 0; i < data.length; i++) data[i] = 255 * Math.sqrt(data[i] / 255);
    const context = this.matrix(canvas, data, layers, length);
    this.edges(context, canvas);
    if (this.layer >= 0) {
      context.strokeStyle = this.ink;
      context.lineWidth = 2;
      context.strokeRect(1, (this.layer / layers) * canvas.height, canvas.width - 2, canvas.height / layers);
    }
    return told;
  }

  draw_deviation(canvas) {
    const name = this.heatName === "deviation" ? "deviation" : "left";
    return this.layered(canvas, name, `layers down, tokens across; ${name === "left" ? "after recomputing" : "as cached"}, logarithmic`);
  }

  draw_attention(canvas) {
    const name = this.heatName === "attention_full" ? "attention_full" : "attention";
    return this.layered(canvas, name, `layers down, tokens across; ${name === "attention" ? "chosen method" : "full attention"}`);
  }

  draw_tiles(canvas) {
    const map = this.heat.maps.tile_map;
    if (!map) {
      const context = this.surface(canvas);
      context.fillStyle = `rgba(${this.heatColour}, 0.9)`;
      const { length } = this.heat.record;
      const question = this.model.get("text")?.blocks.at(-1)?.start ?? length;
      const rows = [...[...this.heat.chosen].sort((a, b) => a - b), ...Array.from({ length: length - question }, (_, i) => question + i)];
      for (let y = 0; y < canvas.height; y++) context.fillRect(0, y, ((rows[Math.floor((y / canvas.height) * rows.length)] + 1) / length) * canvas.width, 1);
      return "computed rows down, keys across; every tile is kept: choose a sparse method";
    }
    const [layers, down, across] = map.shape;
    const data = new Uint8Array(down * across);
    const chosen = this.layer < 0 ? [...Array(layers).keys()] : [this.layer];
    for (let i = 0; i < data.length; i++) data[i] = chosen.reduce((sum, at) => sum + map.data[at * down * across + i], 0) / chosen.length;
    const context = this.matrix(canvas, data, down, across);
    this.edges(context, canvas);
    const kept = data.reduce((a, b) => a + b, 0) / data.length / 255;
    return `computed rows down, keys across; ${percent(kept)} of all tiles kept, mean over heads`;
  }

  drawMarks() {
    if (!this.pictures || !this.heat) return;
    for (const [name, { canvas }] of Object.entries(this.canvases)) {
      if (!canvas.width) continue;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      this.pictures[name] ??= context.getImageData(0, 0, canvas.width, canvas.height);
      context.putImageData(this.pictures[name], 0, 0);
      const token = this.marked;
      canvas.dataset.marked = token ?? "";
      if (token == null || token >= this.heat.record.length) continue;
      const cell = canvas.width / this.heat.record.length;
      context.fillStyle = this.dark ? "rgba(120,200,255,.95)" : "rgba(0,90,180,.95)";
      context.fillRect(Math.round(token * cell), 0, Math.max(2, Math.round(cell)), canvas.height);
      if (name === "mask") context.fillRect(0, Math.round((token / this.heat.record.length) * canvas.height), canvas.width, 2);
    }
  }
}

function render({ model, el }) {
  const view = new PromptView(model, el);
  return () => view.destroy();
}

// A model for a page without a kernel: answers come from `data.results`, by order of the blocks and by choice.
function pageModel(data) {
  const state = { options: data.options, wanted: data.wanted, token: null, hovered: null, busy: "", problem: "", text: {}, answers: {}, bill: {}, heat: {} };
  const listeners = {};
  const tell = (name) => (listeners[`change:${name}`] || []).forEach((listener) => listener());
  const built = (index) => (Array.isArray(index) ? Object.fromEntries(data.fields[index[0]].map((name, i) => [name, built(index[i + 1])])) : data.values[index]);
  const answer = () => {
    const { wanted } = state;
    const order = wanted.blocks.map((block) => block.id).join(" ");
    const ratio = wanted.select === "none" || wanted.select === "all" ? 0 : wanted.ratio;
    const found = data.results[order]?.[[wanted.select, String(ratio), wanted.prepare, wanted.positions, wanted.sparse].join("\t")];
    state.problem = found ? "" : `This page holds ${Object.keys(data.results).length} orders of the passages, and not this one: with a kernel, notebook 00 answers any.`;
    tell("problem");
    if (!found) return;
    for (const name of RESULTS) {
      state[name] = { ...built(found[name]), revision: wanted.revision };
    }
    RESULTS.forEach(tell);
  };
  const model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; model.changed = name; },
    save_changes: () => { if (model.changed === "wanted") answer(); else tell(model.changed); },
    on: (name, listener) => (listeners[name] ??= []).push(listener),
    off: (name, listener) => (listeners[name] = (listeners[name] || []).filter((one) => one !== listener)),
  };
  answer();
  return model;
}

export default { render };
