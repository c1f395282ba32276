/* The player's life: controls, keyboard, pointer, and the widget around the picture of player_picture.js.
 *
 * The trace comes once, as bytes; from then on playing, stepping, scrubbing and zooming ask nothing of the kernel. A widget
 * is one ES module that needs no build step and no network, so player.py joins the two files.
 */

// ---- controls --------------------------------------------------------------------------------------------------------

const PLAY_SECONDS = 12, SPEEDS = [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8];  // at x1 the whole trace takes 12 seconds
const CLOCKS = { predicted: "simulated: no process ran", modelled: "real processes, on the clock of the hardware profile",
  measured: "real processes, on this machine's wall clock" };
const HELP = ["space plays and pauses", "arrows step from event to event, Home and End go to the ends", "+ and - change the speed", "z and x zoom, f fits all, s fits a step",
  "v shows weight versions", "r shows each rank, or one row for ranks that are alike", "p lists what the peak of memory holds", "g saves the picture as SVG, Shift g as PNG",
  "a drag moves the playhead, Shift and a drag the view", "? shows and hides this list"];

const ICONS = { first: "M2 3h2v10H2z M13 3v10L5 8z", back: "M9.5 3v10L3 8z M11.5 3H13v10h-1.5z", play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4z M9 3h3v10H9z", next: "M6.5 3v10L13 8z M3 3h1.5v10H3z", last: "M12 3h2v10h-2z M3 3v10l8-5z" };
const icon = (name) => `<svg viewBox="0 0 16 16" width="13" height="13" aria-hidden="true"><path fill="currentColor" d="${ICONS[name]}"/></svg>`;

function element(tag, className, text, about = {}) {
  const made = document.createElement(tag);
  made.className = className; made.textContent = spoken(text);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, SPOKEN.has(name) ? spoken(value) : value);
  return made;
}

function buildDom(el) {
  const d = { root: element("div", "btl-player", "", { role: "group", "aria-label": "trace player: " + HELP.join("; "), "data-lm-suppress-shortcuts": "true" }) };
  d.head = element("div", "btl-head", "");
  d.canvas = element("canvas", "", "", { role: "img", tabindex: "0", "aria-keyshortcuts": "Space ArrowLeft ArrowRight Home End + -" });
  d.bar = element("div", "btl-bar", "");
  const button = (name, text, title) => (d[name] = d.bar.appendChild(element("button", "", text, { type: "button", title, "aria-label": title })));
  button("first", "", "to the start (Home)"); button("back", "", "one event back (left arrow)"); button("play", "", "play (space)");
  button("next", "", "one event on (right arrow)"); button("last", "", "to the end (End)");
  for (const name of ["first", "back", "play", "next", "last"]) d[name].innerHTML = icon(name);
  d.scrub = d.bar.appendChild(element("input", "", "", { type: "range", min: "0", max: "1", step: "any", "aria-label": "time" }));
  d.time = d.bar.appendChild(element("span", "btl-time", ""));
  const apart = (...parts) => d.bar.appendChild(element("span", "btl-apart", "")).append(...parts);  // what belongs together
  d.speed = element("span", "btl-speed", "×1", { title: "speed" });
  apart(button("slower", "−", "slower (-)"), d.speed, button("faster", "+", "faster (+)"));
  apart(button("out", "−", "zoom out (x, or Ctrl and wheel)"), element("span", "btl-speed", "zoom"), button("in", "+", "zoom in (z, or Ctrl and wheel)"));
  button("step", "1 step", "one training step (s)"); button("fit", "all", "the whole trace (f)");
  button("lens", "versions", "colour by weight version (v)"); button("peak", "peak", "what is held at the peak of memory (p)");
  button("save", "save", "save the picture as SVG (g), with Shift as PNG"); button("help", "?", "the keys (?)");
  d.keys = element("div", "btl-keys", "", { role: "note" }); d.keys.append(...HELP.map((line) => element("div", "", line))); d.keys.hidden = true;
  d.now = element("div", "btl-now", "", { "aria-live": "polite" });
  d.tip = element("div", "btl-tip", "");
  d.root.append(d.head, d.canvas, d.bar, d.now, d.tip, d.keys);
  el.append(d.root);
  return d;
}

/** [text, fill, whether a gap is before it] of each item of the legend; the fills "waits" and "idle" are patterns. */
function legendOf({ scene, look, lens }) {
  const items = lens ? [["boxes show the weight version they used (v0, v1, ...)"]] : scene.phases.map((kind) => [`${kind} ${look.phases[kind][2]}`, look.phases[kind][0]]);
  const counted = lens || scene.chunks ? "" : countedText(scene);
  if (counted) items.push([counted]);
  if (scene.exposes) items.push(["covered", COVERED[0]], ["exposed", look.wait]);
  if (!scene.chunks && scene.waits.some((own) => own.length)) items.push(["waits", "waits"]);
  if (scene.idles) items.push(["idle", "idle"]);
  if (scene.plan.length) items.push([scene.plan.some(([, , , , begun]) => begun) ? "pale: planned; dashed: begun" : "pale: planned"]);
  look.memory.forEach(([kind, colour], k) => { if (scene.kinds[k]) items.push([kind, colour, scene.kinds.indexOf(true) === k]); });
  if (scene.chunks) items.push(["in a chunk: 0, 1, ... the ranks whose gradients it has added up; framed: the whole sum; + to be added, = to replace"]);
  return items.map(([text, ...more]) => [spoken(text), ...more]);
}

function drawHead(d, v, note) {
  const { scene, look } = v, patterns = { waits: `repeating-linear-gradient(135deg, ${look.wait} 0 1px, transparent 1px 4px)`,
    idle: `radial-gradient(${v.theme?.soft} 0.8px, transparent 1px) 0 0 / 4px 4px` };
  d.head.replaceChildren();
  if (scene) {
    const badge = element("span", "btl-badge", scene.clock, { title: CLOCKS[scene.clock] || "" });
    badge.style.background = look.clocks[scene.clock] || "#555";
    d.head.append(badge, ...legendOf(v).map(([text, fill, gap]) => {
      const item = element("span", "btl-key" + (gap ? " btl-gap" : "") + (look.memory.some(([kind]) => spoken(kind) === text) ? " btl-kind" : ""), ""), mark = element("i", "", "");
      mark.style.background = patterns[fill] ?? fill;
      item.append(...(fill ? [mark] : []), text);
      return item;
    }));
  }
  if (note) d.head.append(element("span", "btl-note", note));
  d.root.classList.toggle("btl-stale", Boolean(note && scene));
}

function onKeyboard(d, act) {
  const keys = { r: act.fold, " ": act.toggle, ArrowRight: () => act.jump(1), ArrowLeft: () => act.jump(-1), Home: () => act.seek(0), End: () => act.seek(Infinity),
    "+": () => act.faster(1), "=": () => act.faster(1), "-": () => act.faster(-1), z: () => act.zoom(0.5), x: () => act.zoom(2),
    f: () => act.show("all"), s: () => act.show("step"), v: act.lens, p: act.peak, g: () => act.save("svg"), G: () => act.save("png"), "?": act.help, Escape: act.shut };
  d.root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    if (event.key === " " && event.target.tagName === "BUTTON" || event.key === "Escape" && !("peak" in d.root.dataset) && d.keys.hidden) return;  // a focused button presses itself
    event.preventDefault(); event.stopPropagation(); keys[event.key]();
  });
}

function onPointer(d, v, act) {
  let drag = null;
  const at = (event) => { const box = d.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  d.canvas.addEventListener("pointerdown", (event) => {
    if (!v.scene || event.button) return;
    const [x, y] = at(event), found = find(v, x, y);
    if (found?.fold) { act.fold(); return; }
    if (found && "peak" in found) { event.preventDefault(); act.list(found.peak); return; }
    drag = event.shiftKey ? { x, from: v.from, to: v.to } : { scrub: true };
    d.canvas.setPointerCapture(event.pointerId);
    if (drag.scrub) act.seek(tOf(v, x));
  });
  d.canvas.addEventListener("pointermove", (event) => {
    if (!v.scene) return;
    const [x, y] = at(event);
    if (drag?.scrub) act.seek(tOf(v, x));
    else if (drag) act.window(drag.from - (x - drag.x) * (drag.to - drag.from) / v.layout.width, drag.to - drag.from);
    v.under = find(v, x, y); act.frame();
    d.canvas.style.cursor = v.under && ("peak" in v.under || v.under.fold) ? "pointer" : "";
    d.tip.style.display = v.under ? "block" : "none";
    if (!v.under) return;
    d.tip.replaceChildren(...tell(v, v.under).map((line, i) => element(i ? "div" : "b", "", line)));
    const room = d.root.clientWidth - d.tip.offsetWidth - 4, below = d.canvas.offsetTop + y + 18;
    d.tip.style.left = `${Math.max(0, Math.min(x + 14, room))}px`;
    d.tip.style.top = `${below + d.tip.offsetHeight > d.root.clientHeight + 40 ? d.canvas.offsetTop + y - d.tip.offsetHeight - 10 : below}px`;
  });
  const release = () => { drag = null; };
  d.canvas.addEventListener("pointerup", release); d.canvas.addEventListener("pointercancel", release);
  d.canvas.addEventListener("pointerleave", () => { v.under = null; d.tip.style.display = "none"; act.frame(); });
  d.canvas.addEventListener("dblclick", () => act.show("all"));
  d.canvas.addEventListener("wheel", (event) => {
    if (!v.scene) return;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) act.zoom(Math.exp(event.deltaY / 300), tOf(v, at(event)[0]));
    else if (sideways && v.to - v.from < scene_end(v)) act.window(v.from + sideways * (v.to - v.from) / 1000, v.to - v.from);
    else return;  // a plain wheel scrolls the notebook
    event.preventDefault();
  }, { passive: false });
}
const scene_end = (v) => v.scene.end * 0.999;

function setOnce(part, name, value) { if (part && part.getAttribute(name) !== value) part.setAttribute(name, value); }

/** A slider's value with its unit, where noUiSlider writes the place on the scale. */
function sayValue(handle) {
  const slider = handle.closest(".widget-slider"), readout = slider.querySelector(".widget-readout");
  const [name, unit = ""] = slider.querySelector(".widget-label").textContent.split(/, |，/);
  const said = `${readout.textContent} ${unit}`.trim();
  setOnce(handle, "data-said", said); setOnce(handle, "aria-label", name); setOnce(handle, "aria-valuetext", said); setOnce(handle.closest(".btl-graded")?.querySelector("input"), "aria-label", name);
  if (readout.isContentEditable) { setOnce(readout, "role", "textbox"); setOnce(readout, "aria-label", name); }
}

/** What a screen reader is told of a panel: sliders and their numbers, which tab of a row is chosen, what has no effect; an icon is no word. */
function nameParts(panel) {
  for (const handle of panel?.querySelectorAll(".noUi-handle") ?? []) sayValue(handle);
  for (const tab of panel?.querySelectorAll(".btl-tabs button") ?? []) setOnce(tab, "aria-pressed", String(tab.classList.contains("mod-active")));
  for (const icon of panel?.querySelectorAll(".jupyter-button > i") ?? []) setOnce(icon, "aria-hidden", "true");
  for (const label of panel?.querySelectorAll(".btl-controls label") ?? []) setOnce(label, "data-idle", spoken("no effect"));
  for (const part of panel?.querySelectorAll(".btl-controls > * > :not(.widget-label)") ?? []) part.inert = part.parentNode.matches(".btl-idle");
}

/** Follow what changes in a panel: sliders, buttons, and the pane below, which opens at its first line. */
function followParts(panel) {
  const pane = panel.querySelector(".btl-pane");
  const follow = new MutationObserver((changes) => {
    const within = (part, inner) => [...part.addedNodes].some((node) => node.matches?.(inner) || node.querySelector?.(inner));
    for (const { target } of changes)
      if (target.matches(".noUi-handle") && target.getAttribute("aria-valuetext") !== target.dataset.said) sayValue(target);
    if (changes.some((part) => part.target.matches(".btl-tabs button, .btl-controls > *") && part.attributeName === "class" || within(part, ":is(.noUi-handle,i)"))) nameParts(panel);
    if (changes.some((part) => part.target.parentNode === pane && part.attributeName === "style" || pane.contains(part.target) && within(part, ".btl-trouble"))) pane.scrollTop = 0;
  });
  follow.observe(panel, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-valuetext", "class", "style"] });
  nameParts(panel);
  return follow;
}

// In JupyterLab an arrow key moves from cell to cell, and a list of runs or a menu beside this player must keep it.
document.addEventListener("focusin", ({ target }) => {
  if (target.matches?.(".btl-panel select")) target.dataset.lmSuppressShortcuts = "true";
  nameParts(target.closest?.(".btl-panel"));
});

// ---- render ----------------------------------------------------------------------------------------------------------

function render({ model, el }) {
  learn(model.get("look").words);
  const d = buildDom(el), c = d.canvas.getContext("2d"), data = d.root.dataset;
  const v = { scene: null, look: model.get("look"), layer: document.createElement("canvas"), unfolded: false, t: 0, from: 0, to: 1, lens: false, under: null };
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let playing = false, opening = true, rested = true, speed = 3, mode = "auto", asked = 0, last = 0, frames = 0, since = 0, told = 0, dirty = true, hidden = false, revision = 0, page = Infinity;

  function readTheme() {
    const style = getComputedStyle(d.root), colour = (name) => style.getPropertyValue(name).trim();
    v.theme = { bg: colour("--bg"), ink: colour("--ink"), soft: colour("--soft"), rule: colour("--rule"), accent: colour("--accent"), alarm: colour("--alarm"), fade: Number(colour("--fade")), font: style.fontFamily };
    dirty = true;
  }
  function resize() {
    const width = Math.floor(d.root.clientWidth - 8);
    if (width < 50 || !v.scene) return false;
    if (!v.theme.bg) { readTheme(); drawHead(d, v, model.get("note")); }  // styles are known only once the page holds it
    v.layout = layoutOf(v.scene, width, model.get("height"));
    const ratio = window.devicePixelRatio || 1, w = Math.round(width * ratio), h = Math.round(v.layout.height * ratio);
    for (const canvas of [d.canvas, v.layer]) if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    d.canvas.style.height = `${v.layout.height}px`;
    v.ratio = ratio; dirty = true;
    return true;
  }
  function repaint() {
    const layer = v.layer.getContext("2d");
    layer.setTransform(v.ratio, 0, 0, v.ratio, 0, 0);
    v.limit = model.get("limit_bytes");
    paintLayer(layer, v); dirty = false;
  }
  function frame() { asked ||= requestAnimationFrame(draw); }
  function draw(now) {
    asked = 0;
    if (!v.scene || !v.layout || hidden) return;
    if (playing) {
      v.t += Math.min(0.25, (now - (last || now)) / 1000) * v.scene.end / PLAY_SECONDS * SPEEDS[speed];
      last = now;
      if (v.t >= v.scene.end) { v.t = v.scene.end; setPlaying(false); }
      else if ((v.t > v.to || v.t < v.from) && mode !== "all") {  // turn the page
        const range = v.to - v.from;
        act.window(v.t > v.to && v.t < v.to + range ? v.to : v.t - range * 0.1, range);
      }
      frames++;
      if (!since) { since = now; frames = 0; }
      else if (now - since >= 500) { data.fps = Math.round(frames * 1000 / (now - since)); since = now; frames = 0; }
      frame();
    }
    if (dirty) repaint();
    c.setTransform(v.ratio, 0, 0, v.ratio, 0, 0);
    paintFrame(c, v);
    d.scrub.value = v.t / v.scene.end; tellTime();
    if (!playing || now - told > 30) { told = now; tellNow(); }
    data.revision = revision;
  }
  function tellTime() {
    const { step_ends: { length: steps }, end, factor } = v.scene;
    d.time.textContent = spoken(`${digits(v.t * factor)} of ${clockTime(v.scene, end)}${steps > 1 ? `, ${steps} steps` : ""}`);
  }
  function tellNow() {
    data.time = v.t / v.scene.ticks; data.playing = playing; data.lens = v.lens;
    data.from = v.from / v.scene.ticks; data.to = v.to / v.scene.ticks;
    d.scrub.setAttribute("aria-valuetext", spoken(clockTime(v.scene, v.t)));
    d.now.textContent = spoken(nowText(v));
    d.canvas.setAttribute("aria-label", `${spoken(`${v.scene.clock} schedule and memory at ${clockTime(v.scene, v.t)}.`)} ${d.now.textContent}`);
  }
  function setPlaying(on) {
    playing = on; opening &&= on; last = since = 0;
    d.play.innerHTML = icon(on ? "pause" : "play"); d.play.title = spoken(on ? "pause (space)" : "play (space)");
    d.play.setAttribute("aria-label", d.play.title);
    d.now.setAttribute("aria-live", on ? "off" : "polite"); data.playing = on;
    frame();
  }
  function readable(range) {  // whether a box of middling width holds its label
    const widths = v.scene.spans.map((s) => s.end - s.start).filter(Boolean).sort((a, b) => a - b);
    return widths.length === 0 || widths[widths.length >> 2] * (v.layout.width - LEFT - RIGHT) / range >= 17;
  }
  const act = {
    frame,
    pause() { setPlaying(false); },
    toggle() { if (!v.scene) return; if (!playing && (rested || v.t >= v.scene.end)) act.seek(0); setPlaying(!playing); },
    seek(t) {
      if (!v.scene) return;
      v.t = Math.max(0, Math.min(v.scene.end, t)); rested = false;
      if (mode !== "all" && (v.t > v.to || v.t < v.from)) act.window(v.t - (v.to - v.from) / 2, v.to - v.from);
      frame();
    },
    jump(by) {
      if (!v.scene) return;
      setPlaying(false);
      const times = v.scene.times, i = lastBefore(times, v.t, (t) => t);
      act.seek(times[Math.max(0, Math.min(times.length - 1, by > 0 ? i + 1 : times[i] < v.t ? i : i - 1))]);
    },
    faster(by) {
      speed = Math.max(0, Math.min(SPEEDS.length - 1, speed + by));
      data.speed = SPEEDS[speed]; d.speed.textContent = SPEEDS[speed] < 1 ? `×1/${1 / SPEEDS[speed]}` : `×${SPEEDS[speed]}`;
    },
    window(from, range) {
      if (!v.scene) return;
      range = Math.min(v.scene.end, Math.max(v.scene.end / 5000, range));
      v.from = Math.max(0, Math.min(v.scene.end - range, from)); v.to = v.from + range;
      dirty = true; frame();
    },
    zoom(factor, about = v.t >= v.from && v.t <= v.to ? v.t : (v.from + v.to) / 2) {
      if (!v.scene) return;
      mode = "own"; act.window(about - (about - v.from) * factor, (v.to - v.from) * factor);
    },
    show(wanted) {
      if (!v.scene || !v.layout) return;
      mode = wanted;
      const { pages } = v.scene, whole = wanted === "all" || (wanted === "auto" && (pages.length === 1 || readable(v.scene.end)));
      page = whole ? Infinity : pages[0][1];
      const about = wanted === "auto" ? 0 : v.t - (rested || v.t >= v.scene.end);  // the first step: sentences and lessons name its boxes
      const broke = v.scene.unfinished && wanted === "auto", at = Math.max(0, pages.findLastIndex(([from]) => from <= (broke ? v.scene.broke - 1 : about)));  // where it broke
      const [begins, to] = pages[at], from = broke && at && v.scene.broke - begins < 0.1 * (to - begins) ? pages[at - 1][0] : begins;  // a step that has hardly begun, with the one before it
      if (whole) act.window(0, v.scene.end); else act.window(from, to - from);
      if (rested) v.t = Math.min(v.to, v.scene.known);  // nothing in sight is veiled
    },
    lens() { v.lens = !v.lens; d.lens.setAttribute("aria-pressed", v.lens); drawHead(d, v, model.get("note")); dirty = true; frame(); },
  };
  act.fold = () => { v.unfolded = !v.unfolded; data.unfolded = v.unfolded; load(); };
  Object.assign(act, { list: (rank) => list.open(rank, true), peak: () => v.scene && list.toggle(), 
    shut: () => { if (d.keys.hidden) list.close(); else act.help(); }, save: (kind) => saveAs(v, kind),
    help() { d.keys.hidden = !d.keys.hidden; d.help.setAttribute("aria-pressed", !d.keys.hidden); } });
  const list = peakList(d, v, act);
  function load() {
    const old = v.scene, live = model.get("live");
    v.scene = readScene(model.get("data"), v.look, v.unfolded || live);
    const opensAt = model.get("opens_at") ?? (v.scene?.chunks && !live && !v.scene.unfinished && model.get("controls")?.length ? 0 : null);  // at their end all collectives look alike
    v.under = null; d.tip.style.display = "none";
    const has = Boolean(v.scene);
    if (!has && v.layout) d.root.style.minHeight = `${d.root.offsetHeight}px`;  // the page does not jump while a run starts
    for (const part of [d.canvas, d.bar, d.now]) part.style.display = has ? "" : "none";
    if (has) d.root.style.minHeight = "";
    drawHead(d, v, model.get("note"));
    revision++;
    Object.assign(data, { spans: v.scene?.all.spans.length ?? 0, clock: v.scene?.clock ?? "", end: has ? v.scene.end / v.scene.ticks : 0 });
    if (!has) { list.close(); setPlaying(false); data.revision = revision; return; }
    d.peak.style.display = v.scene.peaks.some(Boolean) ? "" : "none"; list.renew();
    d.step.style.display = v.scene.pages.length > 1 ? "" : "none";
    d.lens.style.display = v.scene.spans.some((s) => s.version != null) ? "" : "none";
    const [from, to] = [v.from, v.to];
    const same = old && old.clock === v.scene.clock && old.unit === v.scene.unit;
    if (!same || live || opening || ((rested || v.t >= old.end) && !playing)) { if (playing) setPlaying(false); v.t = opensAt ?? v.scene.known; rested = opensAt === null; } else v.t = Math.min(v.t, v.scene.end);
    hidden = !resize();
    if (hidden) return;  // it is laid out when it is seen
    if (live && v.scene.plan.length && page < Infinity) {
      const [begins, ends] = v.scene.pages.findLast(([start]) => start < v.t) ?? v.scene.pages[0];  // the step that goes on
      act.window(begins, ends - begins);
    } else if (live) act.window(v.scene.end - page, page); else if (same && mode === "own") act.window(from, to - from); else act.show(mode);
    frame();
  }

  d.first.onclick = () => act.seek(0); d.last.onclick = () => act.seek(Infinity);
  d.back.onclick = () => act.jump(-1); d.next.onclick = () => act.jump(1); d.play.onclick = act.toggle;
  d.slower.onclick = () => act.faster(-1); d.faster.onclick = () => act.faster(1);
  d.in.onclick = () => act.zoom(0.5); d.out.onclick = () => act.zoom(2);
  d.fit.onclick = () => act.show("all"); d.step.onclick = () => act.show("step"); d.lens.onclick = act.lens; d.peak.onclick = act.peak;
  d.save.onclick = (event) => act.save(event.shiftKey ? "png" : "svg"); d.help.onclick = act.help;
  d.lens.setAttribute("aria-pressed", false); data.speed = 1; data.fps = 0;
  d.scrub.oninput = () => act.seek(d.scrub.value * (v.scene?.end ?? 0));
  onKeyboard(d, act); onPointer(d, v, act);
  const onTheme = () => { for (const wait of [0, 300, 1200]) setTimeout(() => { readTheme(); drawHead(d, v, model.get("note")); frame(); }, wait); };
  const tellRoom = () => {  // a hidden player is no narrower than its panel
    const room = Math.floor(d.root.closest(".btl-panel")?.clientWidth ?? 0) - 24;
    if (room > 300 && room !== model.get("room")) { model.set("room", room); model.save_changes(); }
  };
  let parts = null;
  setTimeout(() => { tellRoom(); const panel = d.root.closest(".btl-panel"); if (panel) { size.observe(panel); panel.querySelectorAll(".btl-controls").forEach((each) => inSight.observe(each)); parts = panel.querySelector(".btl-pane") && followParts(panel); } }, 300);  // also where a figure stands in its place
  const size = new ResizeObserver(() => {
    tellRoom();
    const before = v.layout?.width;  // the height changes with each trace, which is no reason to move the view
    if (!resize()) return;
    if (hidden) { hidden = false; v.from = 0; v.to = v.scene.end; act.show(mode === "own" ? "auto" : mode); }
    else if (before !== v.layout.width && mode !== "own" && !model.get("live")) { act.show(mode); if (v.listed !== null) act.seek(v.t); }  // a list may have brought a scroll bar
    frame();
  });
  const theme = new MutationObserver(onTheme);
  readTheme(); load(); size.observe(d.root);
  const seen = new IntersectionObserver((all) => {  // a collective opens at its first round, and plays once
    if (!all.some((each) => each.isIntersecting)) return;
    seen.disconnect();
    if (v.scene?.chunks && v.t === 0 && !still.matches) setPlaying(true); else opening = false;
  });
  seen.observe(d.canvas);
  const inSight = new IntersectionObserver((all) => { if (all.some((each) => each.isIntersecting)) near(); }, { threshold: 1 });
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  const onNote = () => drawHead(d, v, model.get("note")), onShape = () => { resize(); frame(); };
  // A control sends its moves one at a time: the next waits until the kernel is through with those it has sent, its _pending_msgs (ipywidgets
  // tells them in no other way). A press does not wait, so it brings what all of them show, also where the kernel has heard a later move first:
  // that is told again, with all that a hand has moved since.
  const controls = new Map(), hands = new Set(), order = (control) => { controls.delete(control.model_id); controls.set(control.model_id, control); };  // the last one moved last
  const onControl = (control) => { order(control); hands[control._state_lock ? "delete" : "add"](control.model_id); };  // a kernel's own moves come under that lock
  const onControls = () => (model.get("controls") ?? []).filter((id) => !controls.has(id)).forEach(async (id) => {
    const control = await model.widget_manager.get_model(id);
    order(control); control.on("change", onControl);
  });
  const moves = (all) => {
    const told = [...controls].filter(([id, control]) => all || hands.has(id) || control._pending_msgs);
    hands.clear();
    return Object.fromEntries(told.map(([id, control]) => [id, Object.fromEntries(["value", "index"].filter((key) => control.get(key) !== undefined).map((key) => [key, control.get(key)]))]));
  };
  const onPress = (event) => {
    const panel = d.root.closest(".btl-panel"), button = event.target.closest?.(".btl-run, .btl-pin");
    if (!button || !panel?.contains(button)) return;
    event.stopPropagation();  // else the button sends a press too, without the moves
    model.send({ press: button.matches(".btl-run") ? "run" : "pin", moves: moves(true) });
  };
  let moved = 0, heard = 0;  // the last hand on the panel's controls, and the last that the kernel has heard
  const onMoved = (event) => {
    const panel = d.root.closest(".btl-panel");
    if (!panel?.contains(event.target) || !event.target.closest(".btl-controls")) return;
    const number = ++moved;
    setTimeout(() => model.send({ heard: number, moves: moves(false) }), 100);
    setTimeout(() => panel.classList.toggle("btl-asked", heard < moved && number === moved), 400);  // what is shown is of other settings
  };
  const near = () => setTimeout(() => model.send({ heard: moved, moves: moves(false) }), 100);  // a hand may move something soon
  const onNear = ({ target, relatedTarget }) => {
    const controls = target.closest?.(".btl-controls");
    if (controls && d.root.closest(".btl-panel")?.contains(controls) && !controls.contains(relatedTarget)) near();
  };
  const onDocument = [["pointerover", onNear], ["pointerdown", onMoved], ["pointerup", onMoved], ["keyup", onMoved], ["change", onMoved], ["click", onPress]];
  for (const [what, then] of onDocument) document.addEventListener(what, then, true);
  onControls();
  const say = (text) => {
    const said = element("div", "btl-said", text, { role: "status" });
    data.said = text;
    (d.root.closest(".btl-panel") ?? d.root).append(said);
    setTimeout(() => said.remove(), 4000);
  };
  const onMessage = ({ do: what, text }) => {
    if (what === "heard") { heard = Math.max(heard, text); if (heard >= moved) d.root.closest(".btl-panel")?.classList.remove("btl-asked"); }
    else if (what === "mend") setTimeout(() => {  // the setting to change, where a hand is in this panel
      const panel = d.root.closest(".btl-panel");
      const wrong = panel?.contains(document.activeElement) && panel.querySelector(".btl-pane .btl-wrong :is(.noUi-handle, select, input)");
      if (wrong) { wrong.focus({ preventScroll: true }); wrong.scrollIntoView({ block: "nearest" }); }  // and the sentence over the picture stays in sight
    }, 100);
    else if (what === "copy") Promise.resolve(navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => say("copied"), () => say("this browser does not let a page copy: mark the text"));
    else if (v.scene && what === "play" && !still.matches && v.listed === null) { act.seek(0); setPlaying(true); }
  };
  const onLive = () => { if (!model.get("live")) load(); };  // the last data may have come while it was live, when no ranks fold
  model.on("change:data", load); model.on("change:live", onLive); model.on("change:note", onNote); model.on("msg:custom", onMessage); model.on("change:controls", onControls);
  model.on("change:limit_bytes", onShape); model.on("change:height", onShape);
  return () => {
    size.disconnect(); seen.disconnect(); inSight.disconnect(); theme.disconnect(); parts?.disconnect(); cancelAnimationFrame(asked);
    for (const [what, then] of onDocument) document.removeEventListener(what, then, true);
    for (const control of controls.values()) control.off("change", onControl);
    model.off("change:data", load); model.off("change:live", onLive); model.off("change:note", onNote); model.off("msg:custom", onMessage); model.off("change:controls", onControls);
    model.off("change:limit_bytes", onShape); model.off("change:height", onShape);
  };
}

export default { render };
