() => {
  const out = [];
  const box = n => n.getBoundingClientRect();
  const over = (a, b, d = 2) => a.width && b.width && Math.min(a.right, b.right) - Math.max(a.left, b.left) > d && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > d;
  [...document.querySelectorAll('.js-plotly-plot')].forEach((plot, i) => {
    const title = (plot.layout.annotations || []).map(a => a.text).find(t => t.startsWith('<b>')) || '?';
    const say = (what, ...more) => out.push([i, title.replace(/<\/?b>/g, ''), what, ...more]);
    const notes = [...plot.querySelectorAll('.infolayer .annotation')];
    const svg = box(plot.querySelector('.main-svg'));
    const legend = plot.querySelector('.infolayer .legend .bg');
    const menus = [...plot.querySelectorAll('.updatemenu-container .updatemenu-header, .updatemenu-container .updatemenu-button, .slider-container')];
    const text = n => n.textContent.slice(0, 40);
    notes.forEach((n, k) => {
      const b = box(n.querySelector('text') || n);
      if (!b.width) return;
      if (b.right > svg.right + 1 || b.left < svg.left - 1 || b.bottom > svg.bottom + 1 || b.top < svg.top - 1) say('note beyond the figure', text(n), Math.round(b.right - svg.right), Math.round(b.bottom - svg.bottom));
      if (legend && over(b, box(legend))) say('legend over note', text(n), Math.round(Math.min(b.bottom, box(legend).bottom) - Math.max(b.top, box(legend).top)));
      menus.forEach(m => { if (over(b, box(m))) say('menu over note', text(n), text(m)); });
      notes.slice(k + 1).forEach(m => { if (over(b, box(m.querySelector('text') || m))) say('notes overlap', text(n), text(m)); });
    });
    if (legend) { const l = box(legend); if (l.right > svg.right + 1 || l.top < svg.top - 1) say('legend beyond', Math.round(l.right - svg.right));
      menus.forEach(m => { if (over(l, box(m))) say('menu over legend', text(m)); });
      const entries = [...plot.querySelectorAll('.legend .traces')].map(n => [text(n), box(n.querySelector('.legendtext'))]);
    }
    for (const axis of ['xaxislayer-above', 'yaxislayer-above']) {
      for (const layer of plot.querySelectorAll('.' + axis)) {
        const ticks = [...layer.querySelectorAll('text')].map(n => [n.textContent, box(n)]).filter(([t, b]) => t && b.width);
        for (let a = 0; a < ticks.length; a++) { for (let b = a + 1; b < ticks.length; b++) if (over(ticks[a][1], ticks[b][1], 1.5)) { say('ticks overlap', axis, ticks[a][0], ticks[b][0]); a = 1e9; break; } }
      }
    }
    const titles = [...plot.querySelectorAll('.infolayer text.xtitle, .infolayer text[class*=x][class*=title]')].map(n => [n.textContent, box(n)]).filter(([t, b]) => b.width);
    titles.forEach(([t, b], k) => { titles.slice(k + 1).forEach(([u, c]) => { if (over(b, c, 0) || (Math.abs(b.top - c.top) < 3 && Math.abs(c.left - b.right) < 5)) say('axis titles touch', t, u); });
      notes.forEach(n => { if (over(b, box(n.querySelector('text') || n), 1)) say('axis title over note', t, text(n)); });
      plot.querySelectorAll('.xaxislayer-above text').forEach(n => { if (over(b, box(n), 1.5)) say('axis title over tick', t, n.textContent); }); });
    plot.querySelectorAll('.xaxislayer-above text').forEach(n => notes.forEach(m => { if (n.textContent && over(box(n), box(m.querySelector('text') || m), 1.5)) say('tick over note', n.textContent, text(m)); }));
    for (const table of plot.querySelectorAll('.table')) {
      const cells = [...table.querySelectorAll('.column-cell')].map(box); const clip = box(plot.querySelector('.table-control-view') || table);
      const bottom = Math.max(...[...table.querySelectorAll('.column-cell')].map(n => box(n.querySelector('rect') || n).bottom));
      const room = svg.top + (plot._fullLayout.height - plot._fullLayout.margin.b);
      if (bottom > room + 3) say('table cut', Math.round(bottom - room));
      const cut = [...table.querySelectorAll('.cell-text')].filter(n => n.textContent.includes('…')).length;
      if (cut) say('cells shortened', cut);
    }
    const looks = new Map();
    (plot._fullData || []).forEach(t => { if (!t.showlegend || t.visible !== true || t.type !== 'scatter') return;
      const key = [t.line?.color, t.line?.dash, t.marker?.symbol, Array.isArray(t.marker?.color) ? '' : t.marker?.color, t.mode].join(); 
      if (looks.has(key) && looks.get(key) !== t.name) say('same look', looks.get(key), t.name); looks.set(key, t.name); });
    const traces = plot._fullData || [];
    if (!traces.length) say('blank');
  });
  return out;
}
