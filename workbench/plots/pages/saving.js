// "Save as…" at a figure or table of a page: SVG, PNG, PDF by the browser's own dialogue, CSV and LaTeX. Nothing is loaded.
const saving = (() => {
  const size = place => ({ width: place._fullLayout.width, height: place._fullLayout.height });
  const named = place => (place.closest("figure").dataset.name || place.closest("figure").querySelector("h3")?.textContent || "figure")
    .toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);
  function save(place, url, ending) {
    Object.assign(document.createElement("a"), { href: url, download: `${named(place)}.${ending}` }).click();
  }
  function print(place, url) {  // paper of the figure's size: the browser's own dialogue saves it as PDF, under the page's title
    const { width, height } = size(place), frame = document.createElement("iframe"), { title } = document;
    frame.style.cssText = "position:fixed;width:0;height:0;border:0";
    frame.srcdoc = `<style>@page{size:${width}px ${height + 1}px;margin:0}body{margin:0}svg{display:block}</style>`
      + decodeURIComponent(url.slice(url.indexOf(",") + 1));
    frame.onload = () => {
      document.title = named(place);
      frame.contentWindow.onafterprint = () => { document.title = title; frame.remove(); };
      frame.contentWindow.print();
    };
    document.body.append(frame);
  }
  const list = values => (values && values.length !== undefined ? Array.from(values) : []);
  function cells(place) {  // of the traces that are shown: a row a point, or a cell of a map
    const rows = [["trace", "panel", "x", "y", "z", "low", "high"]], layout = place._fullLayout;
    const plain = text => String(text ?? "").replace(/<[^>]*>/g, " ");
    const axis = (trace, name) => layout[`${name}axis${(trace[`${name}axis`] || name).slice(1)}`] || {};
    const panel = (x, y) => plain((layout.annotations || []).find(note => note.x === x.domain?.[0] && note.y === y.domain?.[1])?.text);
    const word = ({ ticktext, tickvals, range }, value) => {  // the name that a mark stands beside, where names are along the axis
      const names = list(ticktext).length && list(tickvals).every((tick, at) => tick === at) && Math.min(...range) < -0.4;
      return names ? plain(ticktext[Math.round(value)] ?? value) : value;
    };
    for (const trace of place._fullData) {
      if (trace.visible !== true || trace.hoverinfo === "skip") continue;
      const x = axis(trace, "x"), y = axis(trace, "y"), name = plain(trace.name), over = panel(x, y);
      if (trace.z) list(trace.z).forEach((line, down) => list(line).forEach((z, at) =>
        rows.push([name, over, trace.x?.[at] ?? at, trace.y?.[down] ?? down, z, "", ""])));
      else list(trace.x?.length ? trace.x : trace.y).forEach((_, at) => {
        const across = trace.orientation === "h" || trace.error_x?.visible, bars = across ? trace.error_x : trace.error_y;
        const middle = Number((across ? trace.x : trace.y)?.[at]), above = bars?.visible ? bars.array?.[at] : undefined;
        const below = bars?.visible ? (bars.arrayminus ?? bars.array)?.[at] : undefined;
        rows.push([name, over, word(x, trace.x?.[at] ?? at), word(y, trace.y?.[at] ?? ""), "",
          below === undefined ? "" : middle - below, above === undefined ? "" : middle + above]);
      });
    }
    const used = rows[0].map((title, at) => title === "panel" ? new Set(rows.map(row => row[at])).size > 2
      : at < 4 || rows.slice(1).some(row => row[at] !== "" && row[at] !== null));
    return rows.map(row => row.filter((_, at) => used[at]));
  }
  const csv = rows => rows.map(row => row.map(cell => {
    const text = String(cell ?? "");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\n") + "\n";
  const SIGNS = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const rounded = cell => (typeof cell === "number" ? String(Number(cell.toPrecision(4))) : String(cell ?? "--"));
  const escaped = cell => rounded(cell).replace(/[\\~^&%$#_{}]/g, sign => SIGNS[sign] || `\\${sign}`);
  function latex(rows) {
    const line = row => `${row.map(escaped).join(" & ")} \\\\`;
    return [`\\begin{tabular}{${"l" + "r".repeat(rows[0].length - 1)}}`, "\\toprule", line(rows[0]), "\\midrule",
      ...rows.slice(1).map(line), "\\bottomrule", "\\end{tabular}", ""].join("\n");
  }
  function menu(figure, rows, pictures) {
    if (!figure) return;
    const place = figure.firstElementChild, box = document.createElement("details");
    box.className = "wb-save";
    box.append(Object.assign(document.createElement("summary"), { textContent: "Save as…" }), document.createElement("div"));
    const text = (made, ending) => {
      const url = URL.createObjectURL(new Blob([made(rows())], { type: "text/plain" }));
      save(place, url, ending);
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    };
    const ways = { ...pictures, CSV: () => text(csv, "csv"), LaTeX: () => text(latex, "tex") };
    for (const [name, act] of Object.entries(ways)) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
      button.addEventListener("click", () => { box.open = false; act(); });
      box.lastChild.append(button);
    }
    figure.prepend(box);
  }
  function figure(place) {
    const image = (format, more = {}) => Plotly.toImage(place, { format, ...more, ...size(place) });
    menu(place.closest("figure"), () => cells(place), {
      SVG: () => image("svg").then(url => save(place, url, "svg")),
      PNG: () => image("png", { scale: 3 }).then(url => save(place, url, "png")),
      "PDF…": () => image("svg").then(url => print(place, url)),
    });
  }
  function table(place) {
    menu(place.closest("figure"), () => texts(place), {});
  }
  // Rows that are shown. Small print of a cell, its interval, is a column of its own; so is a heading over several rows.
  function texts(place) {
    const rows = [...(place.rows ?? place.querySelectorAll(".head, summary:has(.verdict)"))]
      .filter(row => row.offsetParent !== null).map(row => [...row.children]);
    const whole = cell => cell.textContent.trim().replace(/\s+/g, " "), over = row => row.length === 1 && row[0].colSpan > 1;
    const split = rows[0].map((_, at) => rows.some(row => row[at]?.querySelector("small"))), grouped = rows.some(over);
    const parts = cell => {
      const small = cell.querySelector("small"), text = whole(cell);
      return small ? [text.slice(0, -whole(small).length).trim(), whole(small)] : [text, ""];
    };
    const made = [];
    let group = "";
    for (const row of rows) {
      if (over(row)) {
        group = whole(row[0]);
        continue;
      }
      const head = !made.length;
      const cells = row.flatMap((cell, at) => (!split[at] ? [whole(cell)] : head ? [whole(cell), `${whole(cell)}: interval`] : parts(cell)));
      made.push(grouped ? [head ? "" : group, ...cells] : cells);
    }
    return made;
  }
  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("figure.saved :is(table, .claims)").forEach(table));
  return { figure, table };
})();
