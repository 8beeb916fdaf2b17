// SPDX-License-Identifier: Apache-2.0
#include "base/html_assets.h"

namespace saturate {

// The two series colours keep at least 3:1 contrast on their background and stay apart for the
// common kinds of colour blindness.
const char kPageStyle[] = R"css(
:root{color-scheme:light dark;--page:#f6f6f4;--card:#fff;--ink:#1a1a19;--soft:#5f5e5a;--line:#e3e2de;
--s0:#2a6fd0;--s1:#d9622b;--good:#1d7f43;--warn:#a8620a}
@media(prefers-color-scheme:dark){:root{--page:#131312;--card:#1d1d1b;--ink:#f0efec;--soft:#a3a29c;
--line:#34332f;--s0:#5a9cf0;--s1:#f0864f;--good:#5cc486;--warn:#e5a84b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 24px 48px}
h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;margin:36px 0 12px}
.sub{color:var(--soft);margin:6px 0 0}
.pill{display:inline-block;margin-left:12px;padding:2px 10px;border:1px solid;border-radius:99px;
font-size:13px;font-weight:600;vertical-align:4px;color:var(--warn)}
.pill.done{color:var(--good)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(230px,42%),1fr));gap:12px;margin-top:24px}
.card,figure,.box{background:var(--card);border:1px solid var(--line);border-radius:10px}
.card{padding:12px 16px 14px}
.card b{display:block;font-size:23px;line-height:1.3;font-weight:600;overflow-wrap:anywhere}
.card span{display:block;font-size:13px;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:14px}
figure{margin:0;padding:12px 12px 6px;position:relative;overflow-x:auto}
figcaption{display:flex;justify-content:space-between;gap:16px;font-weight:600;padding:0 4px 6px}
.legend{display:flex;gap:16px;font-weight:400;font-size:13px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;
vertical-align:4px;background:var(--c)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}
svg{display:block;width:100%;min-width:420px;height:auto;font-size:11.5px}
svg text{fill:var(--soft);font-variant-numeric:tabular-nums}
.grid{stroke:var(--line);stroke-width:1}
.mark,.cross{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.band{fill:var(--c);opacity:.16}
.dot{fill:var(--c);stroke:var(--card);stroke-width:2}
.tip{position:absolute;top:42px;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:6px 10px;font-size:13px;box-shadow:0 3px 12px #0003;white-space:nowrap;
font-variant-numeric:tabular-nums}
.tip[hidden]{display:none}
.tip div{color:var(--soft)}
.box{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:9px 16px;border-top:1px solid var(--line)}
thead th{border-top:0;font-size:13px;color:var(--soft);font-weight:600}
td{overflow-wrap:anywhere;unicode-bidi:plaintext}
.samples td{width:33%;min-width:180px}
.numbers{font-variant-numeric:tabular-nums}
.numbers td,.numbers th{padding:4px 10px;text-align:right;white-space:nowrap}
.numbers td:last-child,.numbers th:last-child,.numbers .l{text-align:left;white-space:normal}
.numbers td.name{min-width:16em;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
.verdict{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--s0);border-radius:10px;padding:14px 18px;margin:16px 0}
.parts span{margin-right:16px;white-space:nowrap}.parts i{display:inline-block;width:11px;height:11px;margin-right:5px}
.note,.meaning{color:var(--soft);font-size:13px}ol.fixes>li{margin-bottom:12px}
.pairs th{width:34%;font:13px/1.6 ui-monospace,Menlo,Consolas,monospace;color:var(--soft)}
.pairs td{font:13px/1.6 ui-monospace,Menlo,Consolas,monospace}
.pairs tr:first-child>*{border-top:0}
details{margin-top:4px}
summary{cursor:pointer;color:var(--soft);font-size:13px}
details.box{margin-top:12px}
details.box>summary{padding:11px 16px;font-size:15px;font-weight:600;color:var(--ink)}
details.box[open]>summary{border-bottom:1px solid var(--line)}
details ol{list-style:none;margin:4px 0 0;padding:0;font-size:13px}
details li{padding:2px 0}
details i{font-style:normal;color:var(--soft);margin-right:8px;font-variant-numeric:tabular-nums}
footer{margin-top:32px;font-size:13px;color:var(--soft);overflow-wrap:anywhere}
@media print{body{background:#fff}figure,.card,.box{break-inside:avoid}}
)css";

const char kChartScript[] = R"js(
for (const svg of document.querySelectorAll('svg[data-range]')) {
  const d = svg.dataset, [x0, x1, y0, y1] = JSON.parse(d.range), [left, top, right, bottom] = JSON.parse(d.box);
  const series = [0, 1].filter(i => d['x' + i]).map(i => {
    const y = JSON.parse(d['y' + i]);  // only points that have a value
    const points = JSON.parse(d['x' + i]).map((x, k) => [x, y[k]]).filter(p => p[1] !== null);
    return {i, name: d['n' + i], points};
  });
  const px = x => left + (x - x0) / (x1 - x0) * (right - left);
  const py = y => bottom - (y - y0) / (y1 - y0) * (bottom - top);
  const draw = (name, className) => {
    const e = document.createElementNS('http://www.w3.org/2000/svg', name);
    e.setAttribute('class', className);
    e.style.display = 'none';
    return svg.appendChild(e);
  };
  const cross = draw('path', 'cross'), dots = series.map(s => draw('circle', 'dot s' + s.i));
  dots.forEach(dot => dot.setAttribute('r', 4.5));
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  svg.parentNode.appendChild(tip);
  const line = text => {
    const e = document.createElement('span');
    e.textContent = text;
    return e;
  };
  const show = on => {
    for (const e of [cross, ...dots]) e.style.display = on ? '' : 'none';
    tip.hidden = !on;
  };
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const at = x0 + ((event.clientX - box.left) / scale - left) / (right - left) * (x1 - x0);
    const x = series.map(s => nearest(s.points, at)[0]).reduce((a, b) => Math.abs(b - at) < Math.abs(a - at) ? b : a);
    cross.setAttribute('d', `M${px(x)} ${top}V${bottom}`);
    show(true);
    tip.replaceChildren(Object.assign(document.createElement('div'), {textContent: d.xName + ' ' + x}));
    series.forEach((s, k) => {
      const point = nearest(s.points, x);
      dots[k].setAttribute('cx', px(point[0]));
      dots[k].setAttribute('cy', py(point[1]));
      const row = line((series.length > 1 ? s.name + ' ' : '') + Number(point[1].toPrecision(4)) + d.unit +
                       (point[0] === x ? '' : ` at ${d.xName} ${point[0]}`));
      row.className = 'key s' + s.i;
      row.style.display = 'block';
      tip.append(row);
    });
    const middle = px(x) * scale, space = 12, own = svg.offsetLeft || 12;
    tip.style.left = own + (px(x) < (left + right) / 2 ? middle + space : middle - space - tip.offsetWidth) + 'px';
  });
  svg.addEventListener('pointerleave', () => show(false));
}
)js";

}  // namespace saturate
