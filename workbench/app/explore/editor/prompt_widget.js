// The interactive prompt editor: blocks as text with the heat of every token, answers side by side, and linked maps.
// `model` is anywidget's model, or the one that `pageModel` makes of results computed beforehand (a page without a
// kernel). Texts of people and models are put in as text nodes only.

const RESULTS = ["text", "answers", "bill", "heat"];
const NOT_HERE = "Not on this page: run the notebook to";
const EDITING = "acvxyz"; // with Ctrl or Cmd: select all, copy, paste, cut, redo, undo
const SILENT_MS = 3000; // a kernel that has not answered for so long is busy or gone

class PromptView {
  constructor(model, el) {
    this.model = model;
    this.options = model.get("options");
    this.want = clone(model.get("wanted"));
    this.past = [];
    this.first = clone(this.want);
    this.layer = this.head = -1;
    this.heatName = "score";
    this.hovered = null;
    this.pinned = model.get("token") ?? null;
    this.spans = [];
    this.editing = null;
    this.clean = [];
    this.root = make("div", { class: `wb-prompt${this.options.long ? " wb-long" : ""}`, role: "group", "aria-label": "Interactive prompt editor" });
    el.append(this.root);
    this.recall();
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
    for (const [name, label] of [["prepare", "cached"], ["positions", "positions"], ["sparse", "sparse attention"]]) {
      this.menus[name] = make("select", { onchange: (event) => this.choose(name, event.target.value) });
      controls.append(this.labelled(label, this.menus[name]));
    }
    this.undo = make("button", { type: "button", onclick: () => this.back() }, "Undo");
    this.reset = make("button", { type: "button", onclick: () => this.change((want) => Object.assign(want, clone(this.first))) }, "Reset");
    const button = (label, action, title) => make("button", { type: "button", onclick: action, title }, label);
    controls.append(make("span", { class: "wb-buttons" }, this.undo, this.reset,
      button("Add a column", () => this.addColumn(), "Compare with another method"),
      button("Copy as code", () => this.showCode(), "Python code that reproduces this state"),
      button("Save state", () => this.saveState(), "Save the blocks and methods to a file"),
      button("Open state", () => this.openState(), "Load a saved file")));

    this.heatMenu = make("select", { onchange: () => { this.heatName = this.heatMenu.value; this.recolour(); } });
    this.layerSlider = make("input", { type: "range", min: -1, value: -1, oninput: () => { this.layer = Number(this.layerSlider.value); this.recolour(); } });
    this.layerOut = make("output", { class: "wb-number wb-wide" });
    this.headSlider = make("input", { type: "range", min: -1, value: -1, oninput: () => { this.head = Number(this.headSlider.value); this.recolour(); } });
    this.headOut = make("output", { class: "wb-number wb-wide" });
    this.search = make("input", { type: "search", placeholder: "text", oninput: () => this.find(), onkeydown: (event) => event.key === "Enter" && this.find(event.shiftKey ? -1 : 1) });
    this.searchOut = make("output", { class: "wb-number" });
    this.least = make("span", {}, "less");
    this.most = make("span", {}, "more");
    const legend = make("span", { class: "wb-legend", "aria-hidden": "true" }, this.least, make("span", { class: "wb-ramp" }), this.most, make("span", { class: "wb-frame" }, "framed"), "recomputed");
    const colours = make("div", { class: "wb-bar", role: "toolbar", "aria-label": "Colour of the tokens" },
      this.labelled("colour", this.heatMenu), this.labelled("layer", this.layerSlider, this.layerOut), this.labelled("head", this.headSlider, this.headOut), this.labelled("find", this.search, this.searchOut), legend);

    this.status = make("p", { class: "wb-status", role: "status", "aria-live": "polite" });
    this.asked = make("p", { class: "wb-asked" });
    this.cards = make("div", { class: "wb-cards" });
    this.code = make("div", { class: "wb-code" });
    this.detail = make("p", { class: "wb-detail", role: "status", "aria-live": "polite" });
    this.blocks = make("div", { class: "wb-blocks", role: "list", "aria-label": "Blocks of the prompt" });
    this.add = make("button", { type: "button", class: "wb-add", onclick: () => this.addBlock() }, "+ Add a passage");
    const left = make("div", { class: "wb-left" }, this.detail, this.blocks, this.editable ? this.add : null);
    if (!this.editable && this.options.note) left.append(make("p", { class: "wb-note" }, this.options.note));
    this.first_ = make("div", { class: "wb-first" });
    this.bill = make("div", { class: "wb-bill" });
    this.maps = new Maps(this);
    const right = make("div", { class: "wb-right" }, this.first_, this.bill, this.maps.node);
    this.root.append(controls, this.status, this.code, this.asked, this.cards, colours, make("div", { class: "wb-columns" }, left, right));
    this.blocks.addEventListener("pointerover", (event) => this.mark(this.tokenOf(event.target), true));
    this.blocks.addEventListener("pointerleave", () => this.mark(null, true));
    this.blocks.addEventListener("click", (event) => {
      if (!window.getSelection()?.toString() && event.target.closest(".wb-text")) this.mark(this.tokenOf(event.target), false);
    });
  }

  labelled(label, ...inputs) {
    inputs[0].setAttribute("aria-label", label);
    return make("label", { class: "wb-field" }, make("span", {}, label), ...inputs);
  }

  listen() {
    const on = (name, action) => {
      const listener = () => { this.heard(); action(); };
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
    on("heat", () => { this.readHeat(); this.drawControls(); this.paint(); this.drawResults(); this.drawMaps(); this.look(); });
    for (const name of ["busy", "problem"]) on(name, () => this.drawStatus());
    on("looked", () => { this.heat?.see(this.model.get("looked")); this.recolour(false); });
    const live = () => { this.lost = true; this.drawStatus(); };
    this.model.on("comm_live_update", live);
    this.clean.push(() => this.model.off("comm_live_update", live), () => clearTimeout(this.waiting));
    on("token", () => { this.pinned = this.model.get("token") ?? null; this.showMark(); });
    const keys = (event) => this.letThrough(event);
    window.addEventListener("keydown", keys, true); // before JupyterLab, which listens to the document
    this.clean.push(() => window.removeEventListener("keydown", keys, true));
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
    this.hideCode();
    this.send();
    this.drawControls();
    this.drawBlocks();
    this.drawResults();
    this.drawMaps();
  }

  send() {
    this.model.set("wanted", clone(this.want));
    this.model.save_changes();
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => { this.silent = true; this.drawStatus(); }, SILENT_MS);
    this.remember();
  }

  // Leave combinations with Ctrl or Cmd to JupyterLab (save, find), but for those that edit a text or end its editing
  letThrough(event) {
    const isLetter = event.key.length === 1 && !EDITING.includes(event.key.toLowerCase());
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !isLetter || !this.root.contains(event.target)) return;
    const silenced = [];
    for (let node = event.target; node !== this.root.parentNode; node = node.parentNode) {
      if (node.dataset.lmSuppressShortcuts) silenced.push(node);
    }
    silenced.forEach((node) => delete node.dataset.lmSuppressShortcuts);
    setTimeout(() => silenced.forEach((node) => (node.dataset.lmSuppressShortcuts = "true")));
  }

  // Something came from the kernel
  heard() {
    clearTimeout(this.waiting);
    this.silent = false;
  }

  // Why no answer will come, where the notebook knows
  get gone() {
    if (!this.lost && !this.root.closest(".jupyter-widgets-disconnected")) return "";
    const cell = this.root.closest(".jp-Cell")?.querySelector(".jp-InputPrompt")?.textContent.trim();
    return `This view has lost its kernel and shows the last answers. Rerun the notebook up to this cell${cell ? ` (${cell.replace(/:$/, "")})` : ""}.`;
  }

  // ------------------------------------------------------------ columns

  // Every method in its place, by its fields
  methods() {
    const all = [...(this.want.beside || [])];
    all.splice(this.want.place || 0, 0, Object.fromEntries([...FIELDS, "ratio"].map((name) => [name, this.want[name]])));
    return all;
  }

  arrange(all, place) {
    this.change((want) => Object.assign(want, all[place], { beside: all.filter((_, i) => i !== place), place }));
  }

  addColumn() {
    const all = this.methods(), place = this.want.place || 0, next = this.nextMethod(all);
    if (!next) return this.say("Every method of the menus is shown already.");
    all.splice(place + 1, 0, next);
    this.arrange(all, place + 1);
    this.say(`The new column is the chosen one: ${nameOf(this.options, next)}. The menus change its method.`);
  }

  // The first method that no column shows: another selector, then another ratio, then another entry of a further menu
  nextMethod(all) {
    const shown = new Set(all.map(methodKey));
    const one = Object.fromEntries([...FIELDS, "ratio"].map((name) => [name, this.want[name]]));
    const listed = (name) => {
      const values = (this.options[name] || []).map((entry) => entry.value), at = values.indexOf(one[name]);
      return [...values.slice(at + 1), ...values.slice(0, Math.max(0, at))].map((value) => ({ ...one, [name]: value }));
    };
    const others = listed("select"), isRatioFree = ["none", "all"];
    const ratios = (this.options.ratios || RATIOS).map((ratio) => ({ ...one, ratio })).filter((fields) => !isRatioFree.includes(fields.select));
    const further = ["sparse", "prepare", "positions"].flatMap(listed);
    const late = others.filter((fields) => isRatioFree.includes(fields.select)); // plain reuse is shown at first, "all" is full attention
    return [...others.filter((fields) => !late.includes(fields)), ...ratios, ...further, ...late].find((fields) => !shown.has(methodKey(fields)));
  }

  removeColumn(at) {
    const all = this.methods(), place = this.want.place || 0;
    all.splice(at, 1);
    this.arrange(all, Math.max(0, Math.min(all.length - 1, at < place ? place - 1 : place)));
  }

  // ------------------------------------------------------------ the state as code, as a file and in the address

  state() {
    const { blocks, beside, place, ...fields } = clone(this.want);
    delete fields.revision;
    return { blocks, ...fields, beside: beside || [], place: place || 0 };
  }

  // Take away the code of a state that is no longer shown.
  hideCode() {
    this.code?.replaceChildren();
  }

  showCode() {
    const { blocks, ...state } = this.state();
    const chosen = { ...state, max_new_tokens: this.options.max_new_tokens ?? 24, answers: this.model.get("answers")?.expected ?? [] };
    const python = (value) => (Array.isArray(value) ? `[${value.map(python).join(", ")}]` : value && typeof value === "object" ? `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}` : JSON.stringify(value));
    const text = ["from workbench import explore", "", "blocks = [", ...blocks.map((block) => `    ${JSON.stringify(block.text)},`), "]", "touched = explore.prompt(", `    ${JSON.stringify(this.options.model || "lab-full")},`, "    blocks,", ...Object.entries(chosen).map(([name, value]) => `    ${name}=${python(value)},`), ")", "touched", ""].join("\n");
    const area = make("textarea", { rows: 12, readonly: true, "aria-label": "Python code that reproduces this state", spellcheck: "false" });
    area.value = text;
    this.code.replaceChildren(area, make("button", { type: "button", onclick: () => this.code.replaceChildren() }, "Close"));
    area.select();
    navigator.clipboard?.writeText(text).then(() => this.say("Code copied to the clipboard."), () => this.say("Code selected: press Ctrl+C to copy it."));
  }

  saveState() {
    const link = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(this.state(), null, 1)], { type: "application/json" })), download: "prompt.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  openState() {
    const file = make("input", { type: "file", accept: "application/json,.json" });
    file.addEventListener("change", async () => {
      try {
        const read = JSON.parse(await file.files[0].text());
        const isBlock = (one) => ["id", "text", "kind"].every((name) => typeof one?.[name] === "string");
        if (!Array.isArray(read.blocks) || !read.blocks.every(isBlock)) throw new Error("blocks must be a list of {id, text, kind}");
        if (!Array.isArray(read.beside ?? [])) throw new Error("beside must be a list");
        const known = Object.keys(this.state()).filter((name) => name in read);
        this.change((want) => known.forEach((name) => (want[name] = read[name])));
      } catch (problem) {
        this.say(`${file.files[0].name} is no state of a prompt: ${problem.message}`);
      }
    });
    file.click();
  }

  // On a page without a kernel the address holds the state, so that it can be sent
  remember() {
    const { blocks, ...chosen } = this.state();
    this.model.remember?.({ order: blocks.map((block) => block.id), ...chosen, heatName: this.heatName, layer: this.layer, token: this.pinned });
  }

  recall() {
    const { order, heatName, layer, token, ...chosen } = this.model.recalled || {};
    if (!order) return;
    const known = new Map(this.want.blocks.map((block) => [block.id, block]));
    const fields = Object.keys(this.state()).filter((name) => name in chosen);
    fields.forEach((name) => (this.want[name] = chosen[name]));
    if (order.every((id) => known.has(id))) this.want.blocks = order.map((id) => known.get(id));
    Object.assign(this, { heatName: heatName ?? "score", layer: layer ?? -1, pinned: token ?? null });
    this.want.revision += 1;
    this.model.set("wanted", clone(this.want));
    this.model.save_changes();
  }

  back() {
    const before = this.past.pop();
    if (before) this.change((want) => Object.assign(want, before), false);
  }

  choose(name, value) {
    const only = this.options.ratios ? FIELDS.filter((field) => this.options[field]?.length === 1) : []; // a page without a kernel has no other
    this.change((want) => {
      want[name] = value;
      only.forEach((field) => (want[field] = this.options[field][0].value));
    });
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

  // Whether these blocks can be answered: a page without a kernel holds some orders only
  holds(blocks) {
    return !this.options.orders || this.options.orders.includes(blocks.map((block) => block.id).join(" "));
  }

  // The places to which a passage can be moved, and how the blocks then lie
  movesOf(id) {
    const from = this.want.blocks.findIndex((block) => block.id === id);
    const places = this.want.blocks.map((_, i) => i).filter((i) => this.movable(i) && i !== from);
    return places.filter((to) => this.holds(moved(this.want.blocks, from, to)));
  }

  move(id, to) {
    const from = this.want.blocks.findIndex((block) => block.id === id);
    const places = this.want.blocks.map((_, i) => i).filter((i) => this.movable(i));
    const target = Math.max(places[0], Math.min(places.at(-1), to));
    if (from === target) return;
    if (!this.movesOf(id).includes(target)) return this.say(`${NOT_HERE} move the passage there.`);
    this.change((want) => want.blocks.splice(target, 0, ...want.blocks.splice(from, 1)));
    this.say(`Passage ${oneLine(this.want.blocks[target].text)} is now in place ${places.indexOf(target) + 1} of ${places.length}.`);
    this.blocks.querySelector(`[data-id="${CSS.escape(id)}"] .wb-grip`)?.focus();
  }

  removable(id) {
    return this.holds(this.want.blocks.filter((block) => block.id !== id));
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
    this.heat?.see(this.model.get("looked"));
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
      this.fill(this.menus.method, [...methods, { value: -1, title: "custom", disabled: true }], now);
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
    const heats = HEATS.filter(([value]) => value !== "look" || this.options.look);
    this.fill(this.heatMenu, heats.map(([value, title]) => ({ value, title, disabled: !!this.heat && !this.heat.has(value) })), this.heatName);
    this.drawSliders();
  }

  drawSliders() {
    const looks = this.heatName === "look";
    if (this.heat) Object.assign(this.layerSlider, { max: this.heat.record.layers - 1, min: looks ? 0 : -1, value: looks && this.layer < 0 ? this.heat.record.layers - 1 : this.layer });
    if (this.heat) Object.assign(this.headSlider, { max: this.heat.record.heads - 1, value: this.head });
    this.layerOut.value = looks ? this.layerSlider.value : this.layer < 0 ? "all" : this.layer;
    this.headOut.value = this.head < 0 ? "mean" : this.head;
    this.headSlider.closest("label").hidden = !looks;
    this.layerSlider.setAttribute("aria-valuetext", `layer ${this.layerOut.value}`);
    this.headSlider.setAttribute("aria-valuetext", `head ${this.headOut.value}`);
  }

  // The row of the heat's map that the text shows: a head, or a layer
  get row() {
    return this.heatName === "look" ? this.head : this.layer;
  }

  recolour(ask = true) {
    this.drawSliders();
    this.paint();
    this.drawMaps();
    if (ask) this.look();
    this.remember();
  }

  // Ask where the marked token looks, or the last one where none is marked
  look() {
    if (this.heatName !== "look" || !this.heat || this.isStale("heat")) return;
    const asked = { token: this.pinned ?? this.heat.record.length - 1, layer: Number(this.layerSlider.value), revision: this.want.revision };
    if (JSON.stringify(asked) === JSON.stringify(this.model.get("asked"))) return;
    this.model.set("asked", asked);
    this.model.save_changes();
  }

  // Mark where the text is found; `step` goes to the next place
  find(step = 0) {
    const wanted = this.search.value.toLowerCase();
    this.root.querySelectorAll(".wb-found").forEach((span) => span.classList.remove("wb-found"));
    this.found = [];
    for (const node of wanted ? this.blocks.querySelectorAll(".wb-text") : []) {
      const spans = [...node.querySelectorAll("[data-i]")];
      const text = spans.map((span) => span.textContent).join("").toLowerCase();
      for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
        let begin = 0;
        const hit = spans.filter((span) => { const from = begin; begin += span.textContent.length; return begin > at && from < at + wanted.length; });
        hit.forEach((span) => span.classList.add("wb-found"));
        if (hit.length) this.found.push(hit[0]);
      }
    }
    this.searchOut.value = wanted ? `${this.found.length} found` : "";
    if (!step || !this.found.length) return;
    const now = this.found.findIndex((span) => Number(span.dataset.i) === this.pinned);
    const next = this.found.at((now + (now < 0 && step < 0 ? 0 : step)) % this.found.length);
    this.pinned = this.hovered = null; // wherever the mouse rests
    this.mark(Number(next.dataset.i), false);
    next.scrollIntoView({ block: "nearest" });
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
    this.drawAsked();
    this.paint();
  }

  // The question, and the passages that its answer needs: each a button that brings the passage into view
  drawAsked() {
    const question = this.want.blocks.at(-1), passages = this.want.blocks.filter((block) => block.kind === "passage");
    const isFirst = question.text === this.first.blocks.at(-1).text; // another question may need other passages
    const needed = isFirst ? this.options.supporting || [] : [];
    const here = passages.map((block, at) => [block, `passage ${at + 1}${titled(this.options, block.text)}`]).filter(([block]) => needed.includes(block.id));
    const links = here.flatMap(([block, name], at) => [at ? ", " : "", make("button", { type: "button", class: "wb-needed", title: "Show this passage", onclick: () => this.bring(block.id) }, name)]);
    const removed = here.length < needed.length ? `${here.length ? "; " : ""}${needed.length - here.length} of the needed passages removed` : "";
    const needs = needed.length ? make("span", { class: "wb-needs" }, here.length ? "★ needs " : "★ ", ...links, removed) : null;
    this.asked.replaceChildren(make("span", { class: "wb-ask" }, asked(this.options, question.text)), ...(needs ? [" ", needs] : []));
  }

  // Scroll to a block within its scroller, and leave the page where it is
  bring(id) {
    const node = this.blocks.querySelector(`[data-id="${CSS.escape(id)}"]`);
    this.blocks.scrollTo({ top: node.offsetTop - 2 });
    node.querySelector(".wb-text")?.focus({ preventScroll: true });
  }

  block(block, index, number, passages, known) {
    const name = block.kind === "passage" ? `${number}` : block.kind;
    const label = block.kind === "passage" ? `passage ${number}` : block.kind === "system" ? "the system block" : "the question";
    const supporting = this.options.supporting?.includes(block.id);
    const node = make("section", { class: `wb-block wb-${block.kind}`, role: "listitem", "data-id": block.id, "aria-label": label });
    node.style.setProperty("--wb-block", block.kind === "passage" ? `var(--wb-c${this.colour(block.id)})` : "var(--wb-muted)");
    const head = make("header", {});
    if (block.kind === "passage") {
      const moves = this.movesOf(block.id).length > 0 || passages < 2;
      const grip = make("button", { type: "button", class: "wb-grip", disabled: !moves, title: moves ? "Drag or use the arrow keys to move" : `${NOT_HERE} move passages.`, "aria-label": `Move ${label} of ${passages}: up and down arrows` }, "⠿");
      grip.addEventListener("keydown", (event) => this.gripKey(event, block.id));
      grip.addEventListener("pointerdown", (event) => this.drag(event, block.id, node));
      head.append(grip);
    }
    head.append(make("span", { class: "wb-name" }, name, supporting ? make("span", { title: "needed for the answer", "aria-label": "needed for the answer" }, " ★") : null));
    head.append(make("span", { class: "wb-fate" }));
    if (this.editable && this.editing !== block.id) {
      head.append(make("button", { type: "button", class: "wb-edit", "aria-label": `Edit ${label}`, onclick: () => { this.editing = block.id; this.drawBlocks(); } }, "Edit"));
    }
    if (block.kind === "passage" && this.editing !== block.id) {
      const held = this.removable(block.id), few = this.want.blocks.length < 3 || passages < 2;
      head.append(make("button", { type: "button", class: "wb-remove", "aria-label": `Remove ${label}`, disabled: few || !held, title: few || held ? null : `${NOT_HERE} remove this passage.`, onclick: () => this.removeBlock(block.id) }, "×"));
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
      make("small", {}, "Ctrl+Enter to save, Esc to cancel")));
  }

  paragraph(block, label, known) {
    const node = make("div", { class: "wb-text", tabindex: 0, role: "textbox", "aria-readonly": "true", "aria-multiline": "true", "aria-label": `Text of ${label}; left and right arrow keys move between tokens` });
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
    const shares = this.heat?.shares(this.heatName, this.row);
    const isRanged = !!this.heat?.maps[this.heatName]?.log;
    this.least.textContent = isRanged ? ordinal(LOW) : "less";
    this.most.textContent = isRanged ? `${ordinal(HIGH)} percentile` : "more";
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
    const stale = RESULTS.some((name) => this.isStale(name));
    const silent = stale && this.silent ? "The kernel has not responded for three seconds: it is running another cell or has stopped. If it has stopped, rerun the notebook up to this cell." : "";
    const problem = this.model.get("problem") || this.gone || silent;
    this.status.classList.toggle("wb-problem", !!problem);
    this.root.dataset.revision = this.want.revision;
    this.root.dataset.stale = stale || problem ? "stale" : "";
    const busy = this.model.get("busy");
    const text = problem || (stale ? `${busy || "Working"}… Faded results are outdated.` : busy ? `Up to date. ${busy}…` : "Up to date.");
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  drawResults() {
    this.drawStatus();
    const answers = this.model.get("answers") || {}, bill = this.model.get("bill") || {};
    const stale = this.isStale("answers"), expected = answers.expected;
    const place = this.want.place || 0;
    const shown = [{ name: "full attention", full: true, answer: answers.full, bill, seconds: answers.seconds_full, first: answers.full && answers.first, stale: stale || !answers.full, expected }];
    const all = this.methods();
    all.forEach((fields, at) => {
      const active = at === place, beside = at < place ? at : at - 1;
      const answer = active ? answers : answers.beside?.[beside], cost = active ? bill : bill.beside?.[beside];
      shown.push({ name: nameOf(this.options, fields), active, answer: answer?.method, bill: cost, seconds: cost?.seconds?.method, kl: answer?.kl, first: answer?.first, stale: stale || !answer, expected });
    });
    const slowest = Math.max(...shown.map((one) => one.seconds ?? 0));
    const focus = [...this.cards.children].indexOf(document.activeElement?.closest?.(".wb-card"));
    this.cards.replaceChildren(...shown.map((one, at) => card({ ...one, slowest }, at ? { show: () => this.arrange(all, at - 1), remove: all.length > 1 && (() => this.removeColumn(at - 1)) } : null)));
    if (focus > 0) this.cards.children[focus]?.querySelector(".wb-show").focus({ preventScroll: true });
    this.first_.classList.toggle("wb-stale", stale);
    this.first_.replaceChildren(...(answers.first ? [firstTokens(shown)] : []));
    this.drawBill();
  }

  drawBill() {
    const bill = this.model.get("bill");
    const stale = this.isStale("bill");
    this.bill.classList.toggle("wb-stale", stale);
    if (!bill?.rows) return this.bill.replaceChildren();
    this.bill.replaceChildren(make("h4", {}, `${nameOf(this.options, this.want)}: reuse of ${bill.length.toLocaleString("en")} tokens`), key(bill.rows));
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
    if (!hover) {
      this.look();
      this.remember();
    }
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
    const values = !span || stale ? [] : [...new Set([this.heatName, "score", "deviation", "attention_full", "tiles"])].map((name) => this.heat.value(name, name === "look" ? this.head : this.layer, token)).filter((text) => text);
    const fate = stale || !span ? "" : span.closest(".wb-question") ? "always computed" : this.heat.chosen.has(token) ? "recomputed" : "reused";
    this.detail.textContent = span ? [`${JSON.stringify(span.textContent)} at ${token}`, fate, ...values].filter(Boolean).join(" · ") : "Hover over a token, or move through the text with the arrow keys, to see its values here and mark it in the maps. Click to keep the mark.";
    this.maps.mark();
  }

  textKey(event, node) {
    const tokens = [...node.querySelectorAll("[data-i]")].map((span) => Number(span.dataset.i));
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key !== "Escape" && (!step || event.shiftKey || !tokens.length)) return;
    this.hovered = null;
    if (event.key === "Escape") this.pinned = null;
    else {
      const at = tokens.indexOf(this.pinned);
      this.pinned = tokens[Math.max(0, Math.min(tokens.length - 1, at < 0 && step > 0 ? 0 : at + step))];
    }
    event.preventDefault();
    event.stopPropagation();
    this.showMark();
    this.look();
    this.spans[this.pinned]?.scrollIntoView({ block: "nearest" });
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
      const isMoved = ended.type === "pointerup" && to !== this.want.blocks.findIndex((block) => block.id === id);
      if (isMoved && this.movesOf(id).includes(to)) return this.move(id, to);
      this.drawBlocks();
      this.drawBill();
      if (isMoved) this.say(`${NOT_HERE} move the passage there.`);
    };
    const escape = (pressed) => pressed.key === "Escape" && end(pressed);
    const actions = { pointermove: move, pointerup: end, pointercancel: end, keydown: escape };
    for (const [name, action] of Object.entries(actions)) window.addEventListener(name, action, true);
  }

  say(text) {
    this.detail.textContent = text;
  }

  drawMaps() {
    if (this.shades) this.maps.draw(this.isStale("heat"));
  }

  // The blocks whose tokens are known
  told() {
    return this.model.get("text")?.blocks || [];
  }

  nameOfToken(token) {
    const block = this.told().findLast((one) => one.start <= token);
    const text = block?.tokens[token - block.start];
    return text == null ? "" : `${JSON.stringify(text)} at ${token.toLocaleString("en")}, ${block.kind === "passage" ? `passage ${this.told().filter((one) => one.kind === "passage").indexOf(block) + 1}` : block.kind}`;
  }
}

function render({ model, el }) {
  const view = new PromptView(model, el);
  return () => view.destroy();
}

export default { render };
