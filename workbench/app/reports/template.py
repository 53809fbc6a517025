"""The page over all notebooks of a report, as a template of Jinja: style, entries, and what draws and searches."""

INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}: report</title><style>
:root { color-scheme: light dark; --line: #8884; --soft: #666; --ok: #1a7f37; --failed: #cf222e; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --soft: #a3a9b2; --ok: #4cc26a; --failed: #ff7b72; --link: #7cb7ff; }
  body { background: #16181d; color: #e8eaed; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 32px auto; padding: 0 20px; }
a { color: var(--link); } h1 { margin: 0; } header p { max-width: 860px; margin: 6px 0 10px; }
header dl { display: flex; flex-wrap: wrap; gap: 2px 24px; margin: 0 0 12px; font-size: 15px; }
header dl div { display: flex; gap: 6px; } dt { color: var(--soft); } dd { margin: 0; }
header nav { font-size: 16px; margin-bottom: 12px; }
input { font: inherit; width: min(100%, 420px); box-sizing: border-box; padding: 6px 10px; margin-bottom: 20px; }
main { display: grid; gap: 24px; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); align-items: start; }
article { border: 1px solid var(--line); border-radius: 10px; overflow: hidden; } [hidden] { display: none !important; }
.picture { display: block; aspect-ratio: 19/12; overflow: hidden; border-bottom: 1px solid var(--line); color: inherit;
  text-decoration: none; }
.picture img { display: block; width: 100%; } .picture pre { color: inherit; font-size: 12px; padding: 0 12px; }
article.failed .picture { opacity: 0.35; }
section { padding: 12px 16px 16px; } h2 { font-size: 18px; margin: 0 0 2px; } h2 a { color: inherit; }
.status { font-weight: 600; } .status.ok { color: var(--ok); } .status.failed { color: var(--failed); }
.about, .found { margin: 6px 0; } .found { font-weight: 600; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; margin: 6px 0; font-size: 14px; }
td { border-top: 1px solid var(--line); padding: 3px 0; overflow-wrap: anywhere; vertical-align: top; }
td:first-child { overflow-wrap: normal; }
td + td { text-align: right; font-variant-numeric: tabular-nums; padding-left: 12px; }
section pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; color: var(--failed); margin: 10px 0; }
details { font-size: 14px; margin: 4px 0; } summary { cursor: pointer; color: var(--soft); }
ul { margin: 4px 0; padding-left: 20px; }
nav { font-size: 14px; display: flex; gap: 2px 14px; flex-wrap: wrap; }
.group { margin: 40px 0 24px; } .group h2 { font-size: 22px; } .group p { color: var(--soft); margin: 4px 0; }
</style></head><body><header><h1>{{ name }}</h1><p>{{ about }}</p>
<dl>{% for term, value in facts %}<div><dt>{{ term }}</dt><dd>{{ value }}</dd></div>{% endfor %}</dl>
{%- if links %}<nav>{% for address, text in links %}<a href="{{ address }}">{{ text }}</a>{% endfor %}</nav>{% endif %}
<input type="search" placeholder="Search titles, findings, figures, parameters" aria-label="Search" id="search">
<span class="soft" id="count" role="status"></span></header>
{%- for group in groups %}
<div class="together">
{%- if group.heading %}
<div class="group"><h2>{{ group.heading }}</h2><p>{{ group.note }}</p></div>{% endif %}
<main>
{%- for card in group.cards %}
<article class="{{ card.status }}" data-text="{{ card.searched }}">
<a class="picture" href="{{ card.page }}" data-name="{{ card.name }}"
{%- if card.picture %} data-picture="{{ card.picture }}"{% endif %} aria-label="{{ card.title }}"></a><section>
<h2><a href="{{ card.page }}">{{ card.title }}</a></h2>
{% if card.status != "ok" %}<div class="status {{ card.status }}">{{ card.status }}</div>{% endif %}
{%- if card.message %}<pre>{{ card.message }}</pre>{% endif %}
{%- if card.finding %}<p class="found">{{ card.finding }}</p>{% endif %}
{%- if card.about %}<p class="about soft">{{ card.about }}</p>{% endif %}
{%- if card.metrics %}<details><summary>numbers</summary><table>
{%- for name, value in card.metrics %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>{% endfor -%}
</table></details>{% endif -%}
{%- if card.figures %}<details><summary>{{ card.figures | length }} figure
{{- "s" if card.figures | length > 1 }}</summary><ul>
{%- for address, title in card.figures %}<li><a href="{{ address }}">{{ title }}</a></li>{% endfor -%}
</ul></details>{% endif -%}
{%- if card.parameters %}<details><summary>parameters</summary><table>
{%- for name, value, help in card.parameters %}<tr><td title="{{ help }}">{{ name }}</td><td>{{ value }}</td></tr>
{%- endfor %}</table></details>{% endif -%}
{%- if card.data %}<details><summary>raw data</summary><ul>
{%- for address, name in card.data %}<li><a href="{{ address }}">{{ name }}</a></li>{% endfor -%}
</ul></details>{% endif -%}
<nav>{% for address, kind in card.files %}<a href="{{ address }}">{{ kind }}</a>{% endfor %}
<span class="soft">ran in {{ "%.0f" | format(card.seconds) }} s</span></nav></section></article>
{%- endfor %}
</main></div>
{%- endfor %}
<noscript>Pictures and search need JavaScript; links do not.</noscript>
<script>const DARK = {{ dark | safe }}, PLOTLY = {{ plotly | safe }};
const scheme = matchMedia("(prefers-color-scheme: dark)"), known = {}, places = {}, waiting = [];
let busy = false;
for (const place of document.querySelectorAll("[data-picture]")) places[place.dataset.name] = place;

function script(address) {
  return new Promise((done, failed) => {
    const element = Object.assign(document.createElement("script"), {src: address, onload: done, onerror: failed});
    document.head.append(element);
  });
}
function picture(name, found) { known[name] = found; }  // called by the files of pictures

function themed(figure) {
  if (!scheme.matches) return structuredClone(figure);
  const text = JSON.stringify(figure).replace(/"(#[0-9a-fA-F]{6})"/g, (whole, colour) => {
    const dark = DARK[colour.toLowerCase()];
    return dark ? `"${dark}"` : whole;
  });
  return JSON.parse(text);
}
async function draw(place) {
  const name = place.dataset.name;
  if (!known[name]) await script(place.dataset.picture);
  const {figure, image, text} = known[name];
  if (figure) {
    if (!window.Plotly) await script(PLOTLY);
    const shown = themed(figure), width = shown.layout.width || 380, height = shown.layout.height || 240;
    const drawn = Object.assign(new Image(), {alt: ""});
    drawn.src = await Plotly.toImage(shown, {format: "svg", width, height});
    place.replaceChildren(drawn);
  } else if (image && image.startsWith("data:image/")) {
    place.replaceChildren(Object.assign(new Image(), {alt: "", src: image}));
  } else if (text) {
    place.replaceChildren(Object.assign(document.createElement("pre"), {textContent: text}));
  }
  place.dataset.drawn = scheme.matches ? "dark" : "light";
}
async function next() {  // one at a time, so that the page stays quick
  if (busy) return;
  busy = true;
  while (waiting.length) {
    const place = waiting.shift();
    try { await draw(place); } catch (error) { place.dataset.drawn = "failed"; console.error(error); }
    await new Promise(done => setTimeout(done));
  }
  busy = false;
}
const seen = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) if (isIntersecting) { seen.unobserve(target); waiting.push(target); }
  next();
}, {rootMargin: "300px"});
const observe = () => Object.values(places).forEach(place => seen.observe(place));
scheme.addEventListener("change", observe);
observe();

const search = document.getElementById("search"), count = document.getElementById("count");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  for (const card of document.querySelectorAll("article")) {
    card.hidden = !words.every(word => card.dataset.text.includes(word));
    shown += !card.hidden;
  }
  for (const group of document.querySelectorAll(".together"))
    group.hidden = !group.querySelector("article:not([hidden])") && words.length > 0;
  count.textContent = words.length ? `${shown || "none"} of ${document.querySelectorAll("article").length}` : "";
});
</script></body></html>
"""
