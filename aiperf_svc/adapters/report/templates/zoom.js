// Replaces the images of plots over time with uPlot, on one time axis: dragging over one plot zooms all.
(() => {
  "use strict";
  const charts = [];
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const short = value => value == null ? "–" : Number(value.toPrecision(4)).toLocaleString("en-US");

  const follow = (chart, key) => {
    if (key !== "x") return;
    const { min, max } = chart.scales.x;
    for (const other of charts)
      if (other.scales.x.min !== min || other.scales.x.max !== max) other.setScale("x", { min, max });
  };

  // Ends of the load on every x axis, so that all plots begin and end at the same places.
  const aligned = ({ x, lines, end }) => {
    const tables = x.map((times, place) => [times, ...lines.filter(line => line.x === place).map(line => line.y)]);
    return uPlot.join([...tables, [[0, end]]]);
  };

  const bands = spans => chart => {
    const { left, top, width, height } = chart.bbox;
    const inside = place => Math.min(Math.max(chart.valToPos(place, "x", true), left), left + width);
    for (const [begin, end, event] of spans) {
      chart.ctx.fillStyle = color(event ? "event" : "band");
      chart.ctx.fillRect(inside(begin), top, inside(end) - inside(begin), height);
      if (!event || inside(end) >= left + width) continue;
      chart.ctx.fillStyle = color("soft");
      chart.ctx.fillText(event, inside(end) + 4, top + 11);
    }
  };

  const series = title => ({ name, style }) => ({
    label: name || title,
    stroke: () => color(style.split(" ")[0]),
    width: 1.6,
    dash: style.endsWith("dashed") ? [5, 4] : [],
    value: (_, value) => short(value),
  });

  const axis = more => ({
    stroke: () => color("soft"), grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif", ...more,
  });

  const draw = figure => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const picture = figure.querySelector("svg.plot");
    const title = figure.querySelector("figcaption b").textContent;
    const box = picture.getBoundingClientRect();
    const order = data.x.flatMap((_, place) => data.lines.filter(line => line.x === place));
    const chart = new uPlot({
      width: box.width,
      height: box.height,
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(low ?? 0, 0), high > 0 ? high * 1.05 : 1] } },
      axes: [
        axis({ size: 32, values: (_, places) => places.map(place => `${short(place)} s`) }),
        axis({ size: 56, values: (_, places) => places.map(short) }),
      ],
      series: [{ label: "time", value: (_, value) => value == null ? "–" : `${short(value)} s` }, ...order.map(series(title))],
      cursor: {
        y: false,
        sync: { key: "time", filters: { pub: type => type === "mousemove" || type === "mouseleave" } },
      },
      hooks: { drawClear: [bands(data.bands)], setScale: [follow] },
    }, aligned(data), figure);
    chart.root.setAttribute("role", "img");
    chart.root.setAttribute("aria-label", picture.getAttribute("aria-label"));
    figure.classList.add("zoomed");
    charts.push(chart);
    new ResizeObserver(() => {
      const style = getComputedStyle(figure);
      const width = figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      if (Math.abs(width - chart.width) > 1) chart.setSize({ width, height: chart.height });
    }).observe(figure);
  };

  addEventListener("DOMContentLoaded", () => {
    const figures = [...document.querySelectorAll("figure:has(> script)")];
    figures.forEach(draw);
    const note = Object.assign(document.createElement("p"), { className: "note" });
    note.textContent = "Drag over a plot to zoom all plots over time to that span; double-click for the whole run.";
    figures[0]?.parentElement.before(note);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(c => c.redraw(false)));
  });
})();
