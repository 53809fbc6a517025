// A model for a page without a kernel: answers come from `data.results`, by order of the blocks and by choice, and the
// address holds the state, under the id of the page's element.
function pageModel(data, id) {
  const state = { options: data.options, wanted: data.wanted, token: null, hovered: null, busy: "", problem: "", text: {}, answers: {}, bill: {}, heat: {} };
  const listeners = {};
  const tell = (name) => (listeners[`change:${name}`] || []).forEach((listener) => listener());
  const built = (index) => (Array.isArray(index) ? Object.fromEntries(data.fields[index[0]].map((name, i) => [name, built(index[i + 1])])) : data.values[index]);
  const choice = (fields) => [fields.select, String(["none", "all"].includes(fields.select) ? 0 : fields.ratio), fields.prepare, fields.positions, fields.sparse].join("\t");
  const answer = () => {
    const { wanted } = state;
    const of = data.results[wanted.blocks.map((block) => block.id).join(" ")] || {};
    const found = wanted.blocks.every((block) => block.text === texts.get(block.id)) && of[choice(wanted)];
    const orders = Object.keys(data.results).length;
    state.problem = found ? "" : `This combination is not on this page, which holds ${orders === 1 ? "one order" : `${orders} orders`} of the passages with ${data.choices} methods each. Run notebook 00 to answer any combination.`;
    tell("problem");
    if (!found) return;
    for (const name of ["text", "answers", "bill", "heat"]) state[name] = { ...built(found[name]), revision: wanted.revision };
    for (const name of ["answers", "bill"]) state[name].beside = (wanted.beside || []).map((fields) => (of[choice(fields)] ? built(of[choice(fields)][name]) : null));
    ["text", "answers", "bill", "heat"].forEach(tell);
  };
  const texts = new Map(data.wanted.blocks.map((block) => [block.id, block.text]));
  const name = `#${id}=`;
  const model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; model.changed = name; },
    save_changes: () => { if (model.changed === "wanted") answer(); else tell(model.changed); },
    on: (name, listener) => (listeners[name] ??= []).push(listener),
    off: (name, listener) => (listeners[name] = (listeners[name] || []).filter((one) => one !== listener)),
    remember: (view) => history.replaceState(null, "", name + encodeURIComponent(JSON.stringify(view))),
  };
  try {
    if (location.hash.startsWith(name)) model.recalled = JSON.parse(decodeURIComponent(location.hash.slice(name.length)));
  } catch { /* an address that somebody cut: the page begins as it was made */ }
  answer();
  return model;
}
