// A page of a report: figures as wide as the page, and its contents. Nothing is loaded.
const workbench = (() => {
  const NARROWEST = 660, WIDENED = 1000, LEFT = 8;  // px of the narrowest figure; up to where it is wider than the page
  const LEAST = 11, LETTER = 0.55, PLOTTED = 220;  // px of the smallest text; width of a letter by its height; px beside names
  const CROWDED = 0.4, DRAWN = 900, NUMBER = 21;  // share of the width that names of rows take; px of a figure as it was made; px of a cell with a number
  const plots = [];

  function fitted(figure, place) {
    const { margin: { r = 80 } = {}, legend, sliders = [] } = figure.layout;
    const wide = Math.max(NARROWEST, Math.floor(place.clientWidth), Math.min(WIDENED, needed(place, r, sliders))), change = { width: wide };
    place.closest("figure")?.classList.toggle("wb-wide", place.clientWidth > 0 && wide > place.clientWidth);
    const crowded = place.rows && place.left > CROWDED * wide, l = crowded ? Math.round(place.left * LEAST / 12) : place.left;
    if (place.rows) Object.assign(change, { "margin.l": l, "yaxis.tickfont.size": crowded ? LEAST : 12 });
    sliders.forEach(({ steps = [] }, at) => {  // the words of the step on one line
      const longest = Math.max(...steps.map(step => `${step.label}`.length));
      change[`sliders[${at}].currentvalue.font.size`] = Math.max(LEAST, Math.min(12, (wide - l - r) / LETTER / longest));
    });
    for (const { trace, text, columns, share } of place.numbered) {
      trace.texttemplate = share * (wide - l - r) < NUMBER * columns ? "" : text;  // or they run into each other
    }
    for (const [trace, letters] of place.typed) trace.textfont.size = Math.max(LEAST, letters * Math.min(1.3, wide / DRAWN));
    for (const { key, text, size } of cut(place.titles, wide - l - r)) {
      change[`${key}.text`] = text;
      change[`${key}.font.size`] = size;
      if (key.startsWith("annotations")) change[`${key}.align`] = "left";
    }
    if (legend && legend.x < 0) change["legend.x"] = (LEFT - l) / (wide - l - r);  // in line with the title
    return change;
  }
  // The width at which all texts have LEAST px: a title in two lines over its panel, the words of a slider, names of rows
  function needed({ titles, left, rows, typed }, r, sliders) {
    const most = texts => Math.max(0, ...texts.map(text => `${text}`.length));
    const panels = titles.filter(({ text }) => !/<(?!br>)/.test(text)).map(({ text, share }) =>
      most(text.includes("<br>") ? text.split("<br>") : halves(text)) / share);
    const letters = Math.max(0, ...panels, ...sliders.map(({ steps = [] }) => most(steps.map(step => step.label))));
    return Math.max(left + r + letters * LETTER * LEAST + 1, rows ? left * LEAST / 12 + r + PLOTTED : 0, ...typed.map(([, size]) => DRAWN * LEAST / size));
  }
  function halves(text) {  // two lines of the least width
    const cuts = [...text].map((sign, at) => (sign === " " ? at : 0)).filter(Boolean);
    const at = cuts.sort((one, two) => Math.abs(one - text.length / 2) - Math.abs(two - text.length / 2))[0];
    return at ? [text.slice(0, at), text.slice(at + 1)] : [text];
  }
  // Titles of panels and of their axes: what plotly calls them, their text and size, the share of the width that they have
  function titles({ annotations = [], ...layout }) {
    const found = [], taken = new Set();
    for (const [key, axis] of Object.entries(layout).filter(([key, axis]) => /^xaxis/.test(key) && axis.domain)) {
      const [low, high] = axis.domain, share = high - low;
      if (share > 0.5) continue;
      const at = annotations.findIndex((note, i) => !taken.has(i) && !note.name && note.x === low && note.xanchor === "left"
        && note.yanchor === "bottom" && note.yref === "paper");
      taken.add(at);
      if (at >= 0) found.push([`annotations[${at}]`, annotations[at], share]);
      if (axis.title?.text) found.push([`${key}.title`, axis.title, share]);
    }
    return found.map(([key, { text, font }, share]) => ({ key, text, size: font?.size ?? 12, share }));
  }
  function cut(all, wide) {  // larger where there is room, smaller where there is none, then in two lines, then shorter
    const letters = text => Math.max(...text.split("<br>").map(line => line.length)), ofAxis = ({ key }) => key.endsWith("title");
    const most = (most, kind) => Math.min(most, ...all.filter(kind).map(({ text, share }) => share * wide / LETTER / letters(text)));
    const largest = [most(13, one => !ofAxis(one)), most(12, ofAxis)];  // one size for all of a kind
    return all.map(({ text, size: made, share, ...one }) => {
      const size = Math.max(made, LEAST, largest[Number(ofAxis(one))]);
      const own = share * wide / LETTER, least = Math.min(size, LEAST);  // px a letter and size
      const lines = text.split("<br>"), longest = letters(text);
      const fits = Math.max(least, Math.min(size, own / longest)), most = Math.max(2, Math.floor(own / least));
      if (longest <= most || /<(?!br>)/.test(text)) return { ...one, size: fits, text };
      return { ...one, size: fits, text: lines.length > 1 ? lines.map(line => short(line, most)).join("<br>") : inTwo(text, most) };
    });
  }
  function inTwo(text, most) {
    const at = text.lastIndexOf(" ", most), first = at > most / 3 ? text.slice(0, at) : text.slice(0, most);
    return `${first}<br>${short(text.slice(first.length).trim(), most)}`;
  }
  const short = (line, most) => (line.length > most ? `${line.slice(0, most - 1)}…` : line);
  function draw(name, figure) {
    const place = document.getElementById(name);
    place.titles = titles(figure.layout);
    place.left = figure.layout.margin?.l ?? 80;
    place.rows = figure.layout.yaxis?.ticktext || figure.layout.yaxis?.categoryarray;
    place.typed = figure.data.filter(({ mode, textfont }) => mode === "text" && /mono/i.test(textfont?.family))
      .map(trace => [trace, trace.textfont.size]);
    place.numbered = figure.data.filter(({ type, texttemplate }) => type === "heatmap" && texttemplate).map(trace => {
      const [low, high] = figure.layout[(trace.xaxis ?? "x").replace("x", "xaxis")]?.domain ?? [0, 1];
      const columns = Number(`${trace.z.shape ?? ""}`.split(",")[1]) || trace.z[0]?.length || 1;
      return { trace, text: trace.texttemplate, columns, share: high - low };
    });
    for (const [path, value] of Object.entries(fitted(figure, place))) set(figure.layout, path, value);
    figure.config = { displaylogo: false, toImageButtonOptions: { format: "svg" }, ...figure.config };
    Plotly.newPlot(place, figure);
    plots.push(place);
    saving.figure(place);
  }
  function set(layout, path, value) {  // a value by plotly's name for its place
    const steps = path.replaceAll("[", ".").replaceAll("]", "").split("."), last = steps.pop();
    steps.reduce((holder, step) => (holder[step] ??= {}), layout)[last] = value;
  }
  function widths() {  // tables that are wider than the page say so
    for (const box of document.querySelectorAll(".wb-scroll")) {
      box.closest("figure")?.classList.toggle("wb-wide", box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1);
    }
  }
  let asked = 0;
  function refit() {
    cancelAnimationFrame(asked);
    widths();
    asked = requestAnimationFrame(() => plots.filter(place => place.clientWidth).forEach(place => {
      const change = fitted(place, place);
      if (change.width !== place._fullLayout.width) Plotly.relayout(place, change).then(() => Plotly.redraw(place));  // or the legend stays where it was
    }));
  }
  let seen = false;  // something that is drawn, in an open section
  function folded(heading) {  // a section, from its heading to the next one's cell; open up to the first that draws
    const part = document.createElement("details"), first = heading.closest(".jp-Cell");
    Object.assign(part, { className: "wb-section", open: !seen });
    first.before(part);
    part.append(Object.assign(document.createElement("summary"), { title: "Open or close this section" }), first);
    part.firstChild.append(heading);
    for (let cell; (cell = part.nextElementSibling)?.matches(".jp-Cell") && !cell.querySelector("h2[id]");) part.append(cell);
    seen ||= part.querySelector(".jp-OutputArea-output :is(figure, table, input)") !== null;
    part.addEventListener("toggle", refit);
    return part;
  }
  function reveal() {  // what the address points at
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target.closest(".wb-section"); part; part = part.parentElement.closest(".wb-section")) part.open = true;
    target.scrollIntoView();
  }
  function fold(headings) {
    const parts = headings.map(folded), closed = [], all = document.createElement("button");
    const name = () => { all.textContent = parts.every(part => part.open) ? "Close all" : "Open all"; };
    Object.assign(all, { type: "button", onclick: () => {
      const open = !parts.every(part => part.open);
      parts.forEach(part => { part.open = open; });
    } });
    parts.forEach(part => part.addEventListener("toggle", name));
    name();
    addEventListener("hashchange", reveal);
    document.addEventListener("click", event => event.target.closest?.("a[href^='#']") && setTimeout(reveal));  // the same address again
    addEventListener("beforeprint", () => parts.filter(part => !part.open).forEach(part => { part.open = true; closed.push(part); }));
    addEventListener("afterprint", () => closed.splice(0).forEach(part => { part.open = false; }));
    reveal();
    return all;
  }
  document.addEventListener("DOMContentLoaded", () => {
    for (const table of document.querySelectorAll(".wb-table")) {
      saving.table(table);
    }
    const parts = [...document.querySelectorAll("main h2[id]")], contents = document.querySelector(".wb-contents");
    if (contents && parts.length > 1) contents.append("On this page:", ...parts.map(part =>
      Object.assign(document.createElement("a"), { href: `#${part.id}`, textContent: part.firstChild.textContent })), fold(parts));
    addEventListener("resize", refit);
    document.addEventListener("toggle", widths, true);
    requestAnimationFrame(widths);
  });
  return { draw };
})();
