// A plotly figure in a notebook. anywidget gives a script two seconds and then drops every message: plotly's script takes
// longer on a busy machine. So one widget holds it, it is loaded once for all figures of a page, and messages wait for it.

const MESSAGES = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps", "removeTraceProps"];

async function plotlyOf(model) {
  const held = await model.widget_manager.get_model(model.get("_plotly").replace("IPY_MODEL_", ""));
  return import(URL.createObjectURL(new Blob([held.get("text")], { type: "text/javascript" })));
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
      return (await figure).render(view);
    },
  };
};
