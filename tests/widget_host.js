// What anywidget's front end asks of a notebook: `define` without RequireJS, and the base classes of models and views.
// An editor has its own of each; this one is as small as the front end allows. `sent` holds what goes to the kernel.
window.sent = [];

class WidgetModel {
  constructor(state) {
    this.attributes = state;
    this.handlers = [];
    this.initialize(state, {});
  }
  initialize() {}
  get(name) { return this.attributes[name]; }
  set(name, value) { this.attributes[name] = value; this.trigger(`change:${name}`); }
  save_changes() { window.sent.push(structuredClone(this.attributes)); }
  send() {}
  on(name, action, owner) { this.handlers.push({ name, action, owner }); }
  once(name, action) { this.on(name, action); }
  off(...which) {
    const [name, action, owner] = which;
    this.handlers = this.handlers.filter((one) =>
      (name && one.name !== name) || (action && one.action !== action) || (owner && one.owner !== owner));
  }
  trigger(name) { this.handlers.filter((one) => one.name === name).forEach((one) => one.action()); }
}

class WidgetView {
  constructor(model) {
    this.model = model;
    this.el = document.body.appendChild(document.createElement("div"));
    this.$el = { empty: () => this.el.replaceChildren() };
  }
  remove() { this.el.remove(); }
}

window.define = async (_, build) => {
  const { AnyModel, AnyView } = build({ DOMWidgetModel: WidgetModel, DOMWidgetView: WidgetView });
  window.model = new AnyModel(JSON.parse(document.getElementById("state").textContent));
  await new AnyView(window.model).render();
};
