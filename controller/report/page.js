"use strict";
(() => {
  const root = document.documentElement, byId = (id) => document.getElementById(id);
  const start = Number(document.body.dataset.start), length = Number(document.body.dataset.end) - start;
  const timeline = byId("timeline"), ticks = timeline.querySelector(".ticks");
  let zoom = 1, pan = 0;
  document.querySelector(".controls").hidden = false;

  const clock = (ns) => {
    const s = Math.round(Math.abs(ns) / 1e9), pad = (n) => String(n).padStart(2, "0");
    const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, sign = ns < 0 ? "-" : "";
    return sign + (h ? `${h}:${pad(m)}:${pad(s % 60)}` : `${m}:${pad(s % 60)}`);
  };
  const drawTicks = () => {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    const seen = length / zoom / 1e9, step = (steps.find((s) => seen / s <= 8) || 86400) * 1e9;
    const from = start + pan * length, marks = [], lines = [];
    for (let t = Math.ceil(from / step) * step; t <= from + seen * 1e9 + 1; t += step) {
      const mark = document.createElement("span");
      mark.style.left = `${(100 * (t - start)) / length}%`;
      mark.textContent = clock(t);
      marks.push(mark);
      const line = document.createElement("s");
      line.style.left = mark.style.left;
      lines.push(line);
    }
    ticks.replaceChildren(...marks);
    timeline.querySelector(".grid .plane").replaceChildren(...lines);
  };
  const show = (z, p) => {
    zoom = Math.min(400, Math.max(1, z));
    pan = Math.min(1 - 1 / zoom, Math.max(0, p));
    root.style.setProperty("--zoom", zoom);
    root.style.setProperty("--pan", pan);
    drawTicks();
  };
  const zoomAt = (factor, share) => {
    const next = Math.min(400, Math.max(1, zoom * factor));
    show(next, pan + share / zoom - share / next);
  };
  byId("in").onclick = () => zoomAt(2, 0.5);
  byId("out").onclick = () => zoomAt(0.5, 0.5);
  byId("reset").onclick = () => show(1, 0);
  const share = (event) => {
    const box = timeline.querySelector(".grid").getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
  };
  timeline.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomAt(event.deltaY < 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  let grabbed = null;
  timeline.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".track")) grabbed = { at: share(event), pan };
  });
  window.addEventListener("pointermove", (event) => {
    if (grabbed) show(zoom, grabbed.pan - (share(event) - grabbed.at) / zoom);
  });
  window.addEventListener("pointerup", () => { grabbed = null; });

  const filter = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const lane of timeline.querySelectorAll(".lane[data-text]")) {
      const text = lane.dataset.text.toLowerCase();
      lane.hidden = !words.every((word) => text.includes(word));
    }
    for (const box of document.querySelectorAll("input[data-group]")) {
      const group = timeline.querySelector(`.group[data-group="${box.dataset.group}"]`);
      if (group) group.hidden = !box.checked;
    }
  };
  byId("filter").addEventListener("input", filter);
  for (const box of document.querySelectorAll("input[data-group]")) box.addEventListener("change", filter);
})();
