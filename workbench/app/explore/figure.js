// A plotly figure in a notebook. anywidget gives a script two seconds and then drops every message: plotly's script takes
// longer on a busy machine. So one widget holds it, it is loaded once for all figures of a page, and messages wait for it.

const MESSAGES = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps", "removeTraceProps"];

async function plotlyOf(model) {
  const held = await model.widget_manager.get_model(model.get("_plotly").replace("IPY_MODEL_", ""));
  return import(URL.createObjectURL(new Blob([held.get("text")], { type: "text/javascript" })));
}

// A still picture of what is drawn, for a notebook that is opened again without this view's state: a second after the
// last change, so that a slider is not slowed.
const LARGEST = 2_000_000; // letters of a picture that is sent

function still(plot) {
  const drawn = [...plot.querySelectorAll(".main-svg")];
  const [width, height] = ["width", "height"].map((name) => drawn[0].getAttribute(name));
  const inner = drawn.map((svg) => new XMLSerializer().serializeToString(svg)).join("");
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">${inner}</svg>`;
}

// Keys on a control move it, not the notebook's cell; who cannot see it hears the name that stands beside it.
function reachable(box) {
  for (const control of box?.querySelectorAll("input, select, button, .noUi-handle, .widget-readout") ?? []) {
    const name = control.closest(".widget-inline-hbox")?.querySelector(".widget-label")?.textContent.trim();
    control.dataset.lmSuppressShortcuts = "true";
    if (name && !control.labels?.length) control.setAttribute("aria-label", name);
  }
}

function keep(model, el) {
  const plot = el.matches(".js-plotly-plot") ? el : el.querySelector(".js-plotly-plot");
  if (!plot?.on) return setTimeout(() => el.isConnected && keep(model, el), 500);
  let later;
  const send = async () => {
    if (!plot.isConnected) return;
    reachable(plot.closest(".wb-explorer"));
    const picture = still(plot);
    try {
      await model.send({ picture: picture.length > LARGEST ? "" : picture });
    } catch { /* no kernel is there any more: the explorer says so */ }
  };
  const soon = () => { clearTimeout(later); later = setTimeout(send, 1000); };
  plot.on("plotly_afterplot", soon);
  soon();
}

export default () => {
  let figure;
  return {
    initialize({ model }) {
      const early = [];
      const waiting = MESSAGES.map((name) => [`change:_py2js_${name}`, `_py2js_${name}`]).map(([event, name]) => {
        const keep = () => model.get(name) && early.push([name, model.get(name)]);
        model.on(event, keep);
        return () => model.off(event, keep);
      });
      globalThis.workbenchPlotly ??= plotlyOf(model);
      figure = globalThis.workbenchPlotly.then((plotly) => {
        const made = plotly.default();
        made.initialize({ model });
        waiting.forEach((stop) => stop());
        for (const [name, value] of early) {
          model.set(name, value);
          model.set(name, null);
        }
        return made;
      });
    },
    async render(view) {
      const ended = await (await figure).render(view);
      keep(view.model, view.el);
      return ended;
    },
  };
};
