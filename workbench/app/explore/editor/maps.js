// The maps: token positions across, with ticks, a scale and the marked token by name in each.

const MAPS = [["mask", "Attention mask"], ["deviation", "Deviation"], ["attention", "Attention from the question"], ["tiles", "Selected blocks"]];

class Maps {
  constructor(view) {
    this.view = view;
    this.node = make("div", { class: "wb-maps" });
    this.figures = {};
    this.pictures = {};
    for (const [name, title] of MAPS) {
      const canvas = make("canvas", { role: "img", "aria-label": title });
      const parts = { canvas, title: make("b", {}, title), told: make("span", {}), named: make("span", { class: "wb-named" }), down: make("div", { class: "wb-down", "aria-hidden": "true" }), across: make("div", { class: "wb-across", "aria-hidden": "true" }), scale: make("div", { class: "wb-scale" }) };
      canvas.addEventListener("pointermove", (event) => { this.row = this.placeAt(canvas, event)[1]; view.mark(this.tokenAt(canvas, event), true); });
      canvas.addEventListener("pointerleave", () => { this.row = null; view.mark(null, true); });
      canvas.addEventListener("click", (event) => view.mark(this.tokenAt(canvas, event), false));
      this.node.append(make("figure", { class: "wb-map" }, make("figcaption", {}, parts.title, parts.told), parts.down, canvas, parts.across, make("div", { class: "wb-foot" }, parts.named, parts.scale)));
      this.figures[name] = parts;
    }
  }

  get heat() {
    return this.view.heat;
  }

  placeAt(canvas, event) {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  tokenAt(canvas, event) {
    const length = this.heat?.record.length;
    const token = Math.floor(this.placeAt(canvas, event)[0] * (length || 0));
    return length && token >= 0 && token < length ? token : null;
  }

  draw(stale) {
    this.pictures = {};
    this.node.classList.toggle("wb-stale", stale);
    for (const [name, parts] of Object.entries(this.figures)) {
      const drawn = this.heat ? this[name](parts.canvas) : { told: "" };
      parts.drawn = drawn;
      if (drawn.title) parts.title.textContent = drawn.title;
      parts.told.textContent = drawn.told;
      parts.canvas.setAttribute("aria-label", `${parts.title.textContent}: ${drawn.told}`);
      parts.down.replaceChildren(...(drawn.down || []).map((text) => make("span", {}, String(text))));
      parts.across.replaceChildren(...this.ticks());
      parts.scale.replaceChildren(...(drawn.scale ? [drawn.scale[0], make("span", { class: "wb-ramp" }), drawn.scale[1]] : []));
    }
    this.mark();
  }

  // Positions along the prompt, in round steps
  ticks() {
    const length = this.heat?.record.length;
    if (!length) return [];
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000].find((size) => length / size <= 5) || length;
    return [...Array(Math.floor(length / step) + 1).keys()].filter((n) => n * step < 0.9 * length).map((n) => {
      const tick = make("span", {}, (n * step).toLocaleString("en"));
      tick.style.left = `${(100 * n * step) / length}%`;
      return tick;
    });
  }

  surface(canvas) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(Math.max(80, canvas.clientWidth || 240) * ratio);
    canvas.height = Math.round(Math.max(60, canvas.clientHeight || 150) * ratio);
    return canvas.getContext("2d", { willReadFrequently: true });
  }

  // A matrix of bytes [rows, columns] over the whole canvas, with the edges of the blocks
  matrix(canvas, data, rows, columns) {
    const { paper, heatColour, dark } = this.view;
    const context = this.surface(canvas);
    const image = new ImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const share = (0.95 * data[i]) / 255;
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + share * (heatColour[c] - paper[c]);
      image.data[4 * i + 3] = 255;
    }
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = columns > canvas.width;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    context.fillStyle = dark ? "rgba(255,255,255,.35)" : "rgba(0,0,0,.3)";
    for (const block of this.view.told().slice(1)) context.fillRect(Math.round((block.start / this.heat.record.length) * canvas.width), 0, 1, canvas.height);
    return context;
  }

  mask(canvas) {
    const context = this.surface(canvas);
    const { length, system } = this.heat.record;
    const blocks = this.view.told();
    const starts = blocks.map((block) => block.start);
    const question = starts.at(-1) ?? length;
    const style = getComputedStyle(this.view.root);
    const colours = [0, 1, 2, 3, 4, 5].map((i) => style.getPropertyValue(`--wb-c${i}`).trim());
    context.fillStyle = `rgb(${this.view.paper})`;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const wide = (token) => (token / length) * canvas.width;
    for (let y = 0; y < canvas.height; y++) {
      const row = Math.floor((y / canvas.height) * length);
      const at = starts.findLastIndex((start) => start <= row);
      const computed = row >= question || this.heat.chosen.has(row);
      context.globalAlpha = computed ? 0.9 : 0.45;
      context.fillStyle = computed ? `rgb(${this.view.heatColour})` : blocks[at].kind === "passage" ? colours[this.view.colour(blocks[at].id)] : style.getPropertyValue("--wb-muted").trim();
      if (computed) context.fillRect(0, y, wide(row + 1), 1);
      else {
        context.fillRect(wide(starts[at]), y, wide(row + 1) - wide(starts[at]), 1);
        if (at) context.fillRect(0, y, wide(system), 1);
      }
    }
    context.globalAlpha = 1;
    const share = (length - question + this.heat.chosen.size) / length;
    return { told: `query tokens down, keys across; ${percent(share)} of them computed now (orange)`, down: [0, length], square: true };
  }

  // A map [rows, tokens] of the heat, layers or heads down
  layered(canvas, name, told, row = this.view.layer, rowName = "layer") {
    const map = this.heat.maps[name];
    const [rows, length] = map.shape;
    const data = new Uint8Array(map.data);
    if (!map.log) for (let i = 0; i < data.length; i++) data[i] = 255 * Math.sqrt(data[i] / 255);
    const context = this.matrix(canvas, data, rows, length);
    if (row >= 0) {
      context.strokeStyle = this.view.ink;
      context.lineWidth = 2;
      context.strokeRect(1, (row / rows) * canvas.height, canvas.width - 2, canvas.height / rows);
    }
    const value = (at, token) => `${rowName} ${at}: ${inUnits(name, unpainted(map, map.data[at * length + token]))}`;
    return { told, down: [0, rows - 1], scale: [inUnits(name, map.low), inUnits(name, map.high)], rows, value };
  }

  deviation(canvas) {
    const name = this.view.heatName === "deviation" ? "deviation" : "left";
    return this.layered(canvas, name, `layers down, keys across; ${name === "left" ? "after recomputing" : "as cached"}, ${ordinal(LOW)} to ${ordinal(HIGH)} percentile, logarithmic`);
  }

  attention(canvas) {
    const { heatName, head } = this.view;
    if (heatName === "look" && this.heat.maps.look) return { title: "Attention from the marked token", ...this.layered(canvas, "look", "heads down, keys across", head, "head") };
    const name = heatName === "attention_full" ? "attention_full" : "attention";
    return { title: MAPS[2][1], ...this.layered(canvas, name, `layers down, keys across; ${name === "attention" ? "chosen method" : "full attention"}`) };
  }

  tiles(canvas) {
    const map = this.heat.maps.tile_map;
    if (!map) {
      const context = this.surface(canvas);
      context.fillStyle = `rgba(${this.view.heatColour}, 0.9)`;
      const { length } = this.heat.record;
      const question = this.view.told().at(-1)?.start ?? length;
      const rows = [...[...this.heat.chosen].sort((a, b) => a - b), ...Array.from({ length: length - question }, (_, i) => question + i)];
      for (let y = 0; y < canvas.height; y++) context.fillRect(0, y, ((rows[Math.floor((y / canvas.height) * rows.length)] + 1) / length) * canvas.width, 1);
      return { told: "computed tokens down, keys across; all blocks selected (choose a sparse method)", down: [0, rows.length] };
    }
    const [layers, down, across] = map.shape;
    const data = new Uint8Array(down * across);
    const chosen = this.view.layer < 0 ? [...Array(layers).keys()] : [this.view.layer];
    for (let i = 0; i < data.length; i++) data[i] = chosen.reduce((sum, at) => sum + map.data[at * down * across + i], 0) / chosen.length;
    this.matrix(canvas, data, down, across);
    const kept = data.reduce((a, b) => a + b, 0) / data.length / 255;
    const value = (at, token) => `selected by ${percent(data[at * across + Math.floor((token / this.heat.record.length) * across)] / 255)} of the heads`;
    return { told: `computed tokens down, keys across; ${percent(kept)} of all blocks selected, mean over heads`, down: [0, this.heat.chosen.size + this.heat.record.length - this.view.told().at(-1).start], scale: ["0%", "100%"], rows: down, value };
  }

  // Draw the mark of a token over every map, and name the token
  mark() {
    if (!this.heat) return;
    const token = this.view.marked;
    const { length } = this.heat.record;
    const known = token != null && token < length;
    const name = known ? this.view.nameOfToken(token) : "";
    for (const [map, { canvas, named, drawn }] of Object.entries(this.figures)) {
      if (!canvas.width || !drawn) continue;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      this.pictures[map] ??= context.getImageData(0, 0, canvas.width, canvas.height);
      context.putImageData(this.pictures[map], 0, 0);
      canvas.dataset.marked = token ?? "";
      const row = this.row != null && drawn.rows ? Math.max(0, Math.min(drawn.rows - 1, Math.floor(this.row * drawn.rows))) : null;
      named.textContent = known ? [name, row == null ? "" : drawn.value(row, token)].filter(Boolean).join(" · ") : "";
      if (!known) continue;
      const cell = canvas.width / length;
      context.fillStyle = this.view.dark ? "rgba(120,200,255,.95)" : "rgba(0,90,180,.95)";
      context.fillRect(Math.round(token * cell), 0, Math.max(2, Math.round(cell)), canvas.height);
      if (drawn.square) context.fillRect(0, Math.round((token / length) * canvas.height), canvas.width, 2);
    }
  }
}
