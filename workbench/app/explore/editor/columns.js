// The columns: full attention and every method that answers the prompt, with what each took; and their first tokens.

const TOLD = 0.1; // share of the time to the first token from which on choosing tiles is worth a word
const ROWS = [
  ["question", "question"],
  ["recomputed", "recomputed"],
  ["encoded", "encoded now"],
  ["shifted", "reused, shifted"],
  ["reused", "reused in place"],
];

// The name of a method by its fields, in the words of the menus
function nameOf(options, fields) {
  const title = (menu) => (options[menu] || []).find((one) => one.value === fields[menu])?.title || fields[menu];
  const reuse = (options.prepare || []).find((one) => one.value === fields.prepare)?.reuse || "reuse";
  const whole = fields.select === "none" ? `plain reuse (${reuse})` : fields.select === "all" ? "all recomputed" : `${title("select")}, ${percent(fields.ratio)}`;
  return [whole, fields.positions === "naive" && "naive positions", fields.sparse !== "none" && title("sparse")].filter(Boolean).join(", ");
}

// A card: {name, fields, answer, bill, seconds, kl, full, active, stale, expected}; `act` has show() and remove().
function card(one, act) {
  const { answer, stale } = one;
  const badge = stale ? make("span", { class: "wb-badge" }, answer ? "outdated" : "computing") : !answer.done ? make("span", { class: "wb-badge" }, "streaming") : null;
  const wrong = one.expected?.length ? `✗ expected: ${one.expected.slice(0, 2).join(" or ")}` : "✗ wrong";
  const sign = stale || answer?.right == null ? null : make("span", { class: answer.right ? "wb-right-sign" : "wb-wrong-sign" }, answer.right ? "✓ correct" : wrong);
  const title = act?.show
    ? make("button", { type: "button", class: "wb-show", "aria-pressed": String(one.active), title: one.active ? "Shown in the menus and colours" : "Show this method in the menus and colours", onclick: act.show }, one.name)
    : make("span", { class: "wb-show" }, one.name);
  const remove = act?.remove && make("button", { type: "button", class: "wb-remove", "aria-label": `Remove the column ${one.name}`, onclick: act.remove }, "×");
  return make("article", { class: `wb-card${one.active ? " wb-method" : ""}${one.full ? " wb-full" : ""}${stale ? " wb-stale" : ""}`, "aria-label": `Answer of ${one.name}` },
    make("h4", {}, title, badge, remove),
    make("p", { class: "wb-answer" }, answer?.text || (answer?.done ? "(empty)" : "…"), " ", sign),
    took(one));
}

// What the first token took: its time beside the slowest column's, what became of the tokens, and more in numbers
function took({ bill, full, active, seconds, slowest, kl }) {
  if (!bill?.rows) return null;
  const parts = full ? [["full", bill.length, "computed"]] : ROWS.map(([name, label]) => [name, bill.rows[name], label]);
  const bar = make("span", { class: "wb-stack", "aria-hidden": "true" }, ...parts.filter(([, count]) => count).map(([name, count, label]) => {
    const part = make("span", { class: `wb-part wb-part-${name}`, title: `${label}: ${count} tokens` });
    part.style.width = `${(100 * count) / bill.length}%`;
    return part;
  }));
  const computed = full ? bill.length : bill.computed;
  const pace = make("span", { class: `wb-p${full ? " wb-p-full" : active ? " wb-p-method" : ""}`, "aria-hidden": "true" });
  pace.style.width = `${slowest ? (100 * (seconds ?? 0)) / slowest : 0}%`;
  const said = [`${short(full ? bill.flops.full : bill.flops.method)}FLOPs`];
  if (!full && bill.flops.encoding) said.push(`${percent(bill.flops.encoding / bill.flops.method)} of them encode uncached blocks`);
  if (!full && bill.kept < 1) said.push(`attends to ${percent(bill.kept)} of the allowed pairs`);
  if (!full && bill.seconds.choosing >= TOLD * bill.seconds.method && bill.seconds.choosing > 0) said.push(`selecting them took ${time(bill.seconds.choosing)}; pays off only for long prompts (notebook 10)`);
  if (kl != null) said.push(`KL ${kl < 0.0005 ? "below 0.001" : kl.toFixed(3)} nats`);
  return make("div", { class: "wb-took" }, make("b", { class: "wb-ttft" }, seconds == null ? "" : `TTFT ${time(seconds)}`), pace,
    make("small", {}, `${computed.toLocaleString("en")} of ${bill.length.toLocaleString("en")} tokens computed`), bar, make("small", { class: "wb-more" }, said.join(" · ")));
}

const key = (rows) => make("ul", { class: "wb-key" }, ...ROWS.filter(([name]) => rows[name]).map(([name, label]) => make("li", {}, make("span", { class: `wb-part wb-part-${name}` }), `${label} ${rows[name]}`)));

// The likeliest first tokens of all columns: each {name, first: [{token, full, method}], full, active}
function firstTokens(columns) {
  const listed = columns.filter((one) => one.first);
  const of = (one, token) => one.first.find((row) => row.token === token)?.[one.full ? "full" : "method"];
  const tokens = [...new Set(listed.flatMap((one) => one.first.map((row) => row.token)))];
  const most = (token) => Math.max(...listed.map((one) => of(one, token) ?? 0));
  tokens.sort((a, b) => most(b) - most(a));
  const rows = tokens.slice(0, 5).map((token) => make("tr", {}, make("th", { scope: "row" }, JSON.stringify(token)), ...listed.map((one) => {
    const share = of(one, token);
    const bar = make("span", { class: `wb-p${one.full ? " wb-p-full" : one.active ? " wb-p-method" : ""}` });
    bar.style.width = `${Math.max(0.5, 100 * (share ?? 0))}%`;
    return make("td", {}, make("span", { class: "wb-track" }, bar), make("small", {}, share == null ? "–" : share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(1)}%`));
  })));
  const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "first token"), ...listed.map((one) => make("th", { scope: "col" }, one.name))));
  return make("table", { class: "wb-distribution" }, make("caption", {}, "First token"), head, make("tbody", {}, ...rows));
}
