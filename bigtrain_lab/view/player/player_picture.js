/* The player's picture: a trace, a layout and a view in; paint and words out. Nothing here knows buttons or the kernel.
 *
 * The picture is painted once into a hidden layer, and again only when trace, zoom, size or theme change; a frame copies
 * that layer, veils what has not happened yet and draws the playhead, so its price does not grow with the boxes.
 */

// ---- scene -----------------------------------------------------------------------------------------------------------

/** Groups of ranks whose rows have the same boxes at the same times, done and planned. */
function alikeRanks({ ranks, rows, spans, transfers, chunks, parts, failed, begun, plan = [] }) {
  const boxes = rows.map(([, lane]) => [lane]), groups = new Map();
  for (const [row, kind, , label, start, end, version] of spans) boxes[row].push(kind, label, start, end, version);
  for (const [row, ...box] of plan) boxes[row].push(...box);
  for (const t of transfers) boxes[t.at(-1)].push(t[4], t[5]);
  for (let rank = 0; rank < ranks; rank++) {
    const key = chunks || failed.includes(rank) ? rank : [parts.findIndex(([below]) => rank < below), begun.includes(rank)] + boxes.filter((_, i) => rows[i][0] === rank).join();
    if (groups.has(key)) groups.get(key).push(rank); else groups.set(key, [rank]);
  }
  return [...groups.values()];
}

/** "ranks 0-2", "ranks 0 1 4 5", "rank 4 (server)"; of what is pinned "pinned 0-2". */
function ranksName(group, { parts: [[own]], names }) {
  if (group.length === 1 && group[0] < own) return names[group[0]];
  const numbers = group.map((rank) => rank < own ? rank : rank - own), [first, last] = [numbers[0], numbers.at(-1)];
  return `${group[0] < own ? "ranks" : "pinned"} ${group.length === 1 ? first
    : last - first === group.length - 1 ? `${first}\u2013${last}` : numbers.join(" ")}`;
}

/** The trace with one rank in the place of all that are alike, the one that holds the most. */
function folded(raw, groups) {
  const bytes = (rank) => raw.peaks[rank]?.[2].reduce((total, [, held]) => total + held, 0) ?? 0;
  const kept = groups.map((group) => group.reduce((best, rank) => (bytes(rank) > bytes(best) ? rank : best)));
  const place = new Map(kept.map((rank, k) => [rank, k])), row = [], rows = [];
  raw.rows.forEach((each, i) => { if (place.has(each[0])) { row[i] = rows.length; rows.push(each); } });
  const of = (list) => kept.map((rank) => list[rank]);
  return { ...raw, rows, kept, levels: of(raw.levels), peaks: of(raw.peaks), waits: of(raw.waits),
    ...Object.fromEntries(["spans", "plan"].map((name) => [name, (raw[name] ?? []).filter(([at]) => at in row).map(([at, ...rest]) => [row[at], ...rest])])),
    transfers: raw.transfers.filter((t) => t.at(-1) in row).map((t) => [...t.slice(0, -2), row[t.at(-2)] ?? -1, row[t.at(-1)]]) };
}

/** What is made when it is first asked for: a picture is drawn without it. */
const once = (scene, name, make) =>
  Object.defineProperty(scene, name, { configurable: true, get: () => Object.defineProperty(scene, name, { value: make() })[name] });

function readScene(bytes, look, unfolded) {
  if (!bytes || !bytes.byteLength) return null;
  const whole = JSON.parse(new TextDecoder().decode(bytes)), alike = alikeRanks(whole);
  const groups = unfolded ? Array.from({ length: whole.ranks }, (_, rank) => [rank]) : alike, raw = folded(whole, groups);
  const span = ([row, kind, name, label, start, end, version, waited, message, src, read]) =>
    ({ row, kind, name, label, start, end, version, waited, message, src, read });
  const transfer = ([src, dst, kind, name, start, end, size, label, leaves, reaches]) => ({ src, dst, kind, name, start, end, size, label, leaves, reaches });
  const scene = { ...raw, spans: raw.spans.map(span), transfers: raw.transfers.map(transfer), ranks: groups.length, all: whole };
  scene.plan = raw.plan;  // of a run that goes on or broke off: what it has not done, behind what it has done
  scene.folds = alike.length < whole.ranks;
  scene.names = groups.map((group) => ranksName(group, raw)); scene.alike = groups.map((group) => group.length);
  const highestOf = (rank) => whole.peaks[rank]?.[2].reduce((total, [, bytes]) => total + bytes, 0);
  scene.holders = groups.map((group, k) => group.some((rank) => highestOf(rank) !== highestOf(group[0])) ? `rank ${raw.kept[k]}, most` : scene.names[k]);
  scene.nameOf = (rank) => scene.names[raw.kept.indexOf(rank)] ?? ranksName([rank], raw);
  scene.oneOf = (rank) => ranksName([rank], raw);
  scene.pinnedOf = groups.map((_, k) => groups.findIndex((each) => each.includes(raw.parts[0][0] + raw.kept[k])));  // the same ranks of what is pinned, or -1
  scene.own = raw.parts[0][0]; scene.endOf = (rank) => raw.parts.find(([below]) => rank < below)[1];  // of the trace itself, without what is pinned
  scene.end = Math.max(scene.end, 1); scene.known = scene.plan.length ? scene.endOf(0) : scene.end;
  const ends = [...raw.step_ends], own = scene.spans.filter((s) => raw.rows[s.row][0] < scene.own);
  const after = own.some((s) => s.start >= ends.at(-1) && s.end > ends.at(-1));
  const last = scene.plan.length ? scene.end : Math.max(scene.endOf(0), 1);
  if (after) ends.push(last); else ends[ends.length - 1] = last;  // what follows the last step is a page too
  scene.pages = ends.map((to, i) => [i ? ends[i - 1] : 0, to]);
  scene.firsts = [ends[0], raw.pinned_step ?? 0];
  scene.pages[0][1] = Math.max(...scene.firsts);  // the first step of both is seen whole
  scene.byRow = raw.rows.map(() => []);
  for (const s of scene.spans) scene.byRow[s.row].push(s);
  const silent = new Set(scene.byRow.flatMap((row, i) => (row.some((s) => s.kind !== "R") ? [] : [i])));  // a lane that only receives shows its messages as boxes
  if (scene.transfers.length) for (const row of silent) scene.byRow[row] = [];  // not the marks of rounds
  for (const t of scene.transfers) if (silent.has(t.reaches)) {
    const row = scene.byRow[t.reaches], start = Math.max(t.start, row.at(-1)?.end ?? 0);
    if (t.end > start) row.push({ row: t.reaches, kind: t.kind, name: t.name, label: t.label.replace(/^round \d+ /, ""), start, end: t.end, version: null, waited: 0, message: "", src: t.src, size: t.size });
  }
  const all = scene.transfers;
  once(scene, "sent", () => {
    const found = {};
    for (const t of all) (found[`${t.src} ${t.name}`] ||= []).push(t);
    return found;
  });
  if (!unfolded) scene.transfers = scene.transfers.filter((t) => t.leaves >= 0);  // arrows join rows that are shown
  once(scene, "times", () => {
    const times = new Set([0, scene.end]);
    for (const e of scene.spans) times.add(e.start).add(e.end);
    for (const e of scene.transfers) times.add(e.start).add(e.end);
    return Float64Array.from(times).sort();
  });
  scene.longest = scene.transfers.reduce((most, t) => Math.max(most, t.end - t.start), 0);
  scene.totals = raw.levels.map((rank) => Float64Array.from(rank, sum));
  const most = scene.totals.map((totals, k) => (raw.kept[k] < scene.own ? -1 : totals.reduce((high, total) => Math.max(high, total), 0)));
  scene.pinnedMost = raw.parts.length > 1 ? most.indexOf(Math.max(...most)) : -1;  // the fullest rank of what is pinned
  scene.peaks = raw.peaks.map((peak) => {
    const [tick, where, kinds, count, rows] = peak || [];
    return peak && { tick, where, kinds, count, rows, bytes: kinds.reduce((total, [, bytes]) => total + bytes, 0) };
  });
  scene.peak = Math.max(0, ...scene.peaks.map((peak) => peak?.bytes ?? 0), ...scene.totals.flatMap((totals) => totals.reduce((most, total) => Math.max(most, total), 0)));
  scene.unread = raw.levels.map((levels, k) => (raw.deep && levels.length ? unreadOf(scene.byRow[raw.rows.findIndex(([rank]) => rank === raw.kept[k])]) : []));
  const inside = new Map(raw.plan.filter(([row, , , , label]) => label && raw.inside.includes(raw.rows[row][0])).reverse().map(([row, , start]) => [raw.rows[row][0], start]));  // the first of that name
  const reached = (rank) => Math.max(lastOf(scene, rank), inside.get(rank) ?? 0);  // as planned, of a rank that was in a box when the run broke off
  scene.ended = new Map(raw.failed.map((rank) => [rank, reached(rank)]));
  for (const [i, [rank]] of scene.rows.entries()) if (scene.ended.has(rank)) scene.byRow[i] = endedAt(scene.byRow[i], scene.ended.get(rank));
  scene.begun = new Map(raw.begun.filter((rank) => raw.kept.includes(rank)).map((rank) => [rank, reached(rank)]));  // what ranks were in when a run broke off
  scene.plan = raw.plan.map(([row, kind, start, end, label]) => [row, kind, start, end, start <= scene.begun.get(scene.rows[row][0]) ? label : ""]);
  scene.broke = Math.min(scene.known, ...[...scene.ended].map(([rank, end]) => (rank < scene.own ? end : Infinity))) + 1;
  scene.kinds = look.memory.map((_, k) => raw.levels.some((rank) => rank.some((level) => level[k + 1]))
    || scene.peaks.some((peak) => peak?.kinds.some(([kind]) => kind === k)));
  scene.chunks = readChunks(raw.chunks);
  if (scene.chunks) scene.kinds.fill(false);
  scene.idles = raw.idles && !scene.chunks;
  scene.exposes = !scene.chunks && raw.rows.some(([, lane]) => lane !== "compute");
  scene.phases = Object.keys(look.phases).filter((kind) => scene.spans.some((s) => s.kind === kind) || scene.plan.some(([, planned]) => planned === kind));
  [scene.unitName, scene.factor] = unitOf(scene);
  return scene;
}

/** Stretches of a rank's boxes whose memory was read at their ends alone, in a trace that was read inside others: a run tells the first
 * ones, and then new peaks. A forward or a backward always moves memory; other boxes may not. */
function unreadOf(boxes) {
  const found = [];
  let open = null;  // the stretch that may go on
  for (const s of boxes) {
    if (s.read) open = null;
    else if (open) open[1] = s.end;
    else if ("FB".includes(s.kind)) found.push(open = [s.start, s.end]);
  }
  return found;
}

/** The last tick at which anything is known of what a rank computes; other lanes may be ahead. */
function lastOf({ rows, byRow, kept, levels }, rank) {
  const own = kept.indexOf(rank), boxes = byRow.filter((_, i) => rows[i][0] === rank && rows[i][1] === "compute");
  return Math.max(0, ...boxes.map((row) => row.at(-1)?.end ?? 0), levels[own].at(-1)?.[0] ?? 0);
}

/** The boxes of a lane of a rank that failed then: what the lane had begun ends with its rank. */
const endedAt = (row, tick) => row.filter((s) => s.start < tick || s.end <= tick).map((s) => (s.end > tick ? { ...s, end: tick } : s));

const sum = (level) => { let total = 0; for (let k = 1; k < level.length; k++) total += level[k]; return total; };

function unitOf({ unit, ticks, end }) {
  if (unit !== "s") return [unit + "s", 1 / ticks];
  for (const [factor, name] of [[1, "s"], [1e3, "ms"], [1e6, "µs"]]) if (end / ticks * factor >= 1) return [name, factor / ticks];
  return ["ns", 1e9 / ticks];
}

/** Index of the last item whose key is <= value, or -1. */
function lastBefore(items, value, key) {
  let low = 0, high = items.length;
  while (low < high) { const mid = (low + high) >> 1; if (key(items[mid]) <= value) low = mid + 1; else high = mid; }
  return low - 1;
}

/** Items with a `start`, sorted by it, that overlap a stretch of time; none lasts longer than `longest`. */
const during = (items, from, to, longest) =>
  items.slice(lastBefore(items, from - longest, (e) => e.start) + 1, lastBefore(items, to, (e) => e.start) + 1).filter((e) => e.end >= from);
const spanAt = (row, t) => { const s = row[lastBefore(row, t, (e) => e.start)]; return s && t < s.end ? s : null; };
const levelAt = (levels, t) => levels[lastBefore(levels, t, (e) => e[0])];
/** What a rank holds; of one that has ended nothing. */
const heldAt = ({ levels, ended, kept }, rank, t) => t > ended.get(kept[rank]) ? undefined : levelAt(levels[rank], t);
const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 100 ? 5 : 4 });
const clockTime = (scene, t) => t * scene.factor === 1 ? `1 ${scene.unitName.replace("slots", "slot")}` : `${digits(t * scene.factor)} ${scene.unitName}`;

function size(bytes) {  // decimal units, as on a data sheet
  let value = bytes, unit = 0;
  while (+value.toPrecision(4) >= 1000 && unit < 4) { value /= 1000; unit++; }
  return `${+value.toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}
/** A device's memory: makers count in powers of two and call them GB. */
const deviceSize = (bytes) => bytes % 2 ** 30 ? size(bytes) : `${bytes / 2 ** 30} GiB`;
const exactSize = (bytes) => bytes < 1000 ? `${bytes} bytes` : `${size(bytes)} (${bytes.toLocaleString("en")} bytes)`;

// ---- layout and scales -----------------------------------------------------------------------------------------------

const LEFT = 96, RIGHT = 16, TOP = 6, AXIS = 22, THIN = 20, LEAST = 14, ALONE = 26, BESIDE = 200, SIDE = 0.7, HIGHEST = 44;  // a lane beside the compute is lower; none is higher
const pick = (count, choices, otherwise) => { for (const [most, value] of choices) if (count <= most) return value; return otherwise; };

function layoutOf(scene, width, wanted) {
  const rows = scene.rows.length;
  let ranks = scene.levels.some((l) => l.length) && !scene.chunks ? scene.kept.filter((rank) => rank < scene.own).length : 0;
  let row = pick(rows, [[4, 26], [6, 23], [8, 19], [16, 14]], Math.max(4, 240 / rows)), gap = pick(rows, [[4, 9], [8, 7], [16, 4]], 1);
  let strip = pick(ranks, [[1, 104], [2, 60], [4, 38], [6, 32], [8, 24], [16, 15]], Math.max(4, 260 / (ranks || 1))), space = pick(ranks, [[8, 4], [16, 2]], 1);
  const lanes = scene.rows.map(([, lane]) => (lane === "compute" || scene.chunks ? 1 : SIDE));
  const above = lanes.map((_, i) => lanes.slice(0, i).reduce((high, one) => high + one, 0)), all = above.at(-1) + lanes.at(-1);
  const left = wanted - TOP - AXIS - 24 - all * 13 - rows * 2;  // below boxes that hold their labels
  if (wanted && wanted < BESIDE && rows <= 12 && left < ALONE) ranks = 0;  // the table above has it
  const caption = ranks ? 24 : 6;
  const natural = all * row + rows * gap + ranks * (strip + space);
  const under = scene.chunks ? chunksLayout(scene.chunks, 0, width).height + 8 : 0;
  const scale = wanted ? Math.max(0.3, (wanted - TOP - AXIS - caption - under) / natural) : scene.chunks ? 0.64 : 1;
  [row, gap, strip, space] = [Math.min(row * scale, HIGHEST), gap * scale, strip * scale, space * scale];
  if (wanted && ranks && row < 13 && rows <= 12) {  // a box holds its label: memory takes what is left
    [row, gap] = left > LEAST ? [13, 2] : [Math.max(5, Math.min(11, (wanted - TOP - AXIS - caption - LEAST - rows) / all)), 1];
    strip = Math.max(6, (wanted - TOP - AXIS - caption - all * row - rows * gap) / ranks - space);
  }
  if (scene.chunks && row < 12 && row + gap >= 13) [row, gap] = [12, row + gap - 12];  // a round's box holds its label
  const memoryTop = TOP + all * row + rows * gap + caption;
  let strips = Array.from({ length: ranks }, (_, rank) => rank);  // the ranks whose memory is drawn
  if (wanted && ranks > 1 && strip < THIN) { strip = Math.min(80, Math.max(LEAST, wanted - TOP - AXIS - caption - all * row - rows * gap - space)); strips = [highest(scene)]; }  // readable, or none is
  const bottom = memoryTop + strips.length * (strip + space);
  const chunks = scene.chunks && chunksLayout(scene.chunks, bottom + AXIS + 6, width);
  return { width, height: Math.ceil(bottom + AXIS + under), chunks, row, gap, strip, space, memoryTop, bottom, strips, ranks, rows,
    rowY: (i) => TOP + i * gap + (above[i] ?? all) * row, rowH: (i) => lanes[i] * row, stripY: (rank) => memoryTop + strips.indexOf(rank) * (strip + space) };
}

const xOf = (v, t) => LEFT + (t - v.from) / (v.to - v.from) * (v.layout.width - LEFT - RIGHT);
const tOf = (v, x) => v.from + (x - LEFT) / (v.layout.width - LEFT - RIGHT) * (v.to - v.from);

function niceStep(range, count) {
  const rough = range / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((n) => n * power >= rough) * power;
}

// ---- paint -----------------------------------------------------------------------------------------------------------

function paintLayer(c, v) {
  const { scene, layout: L, theme, look } = v;
  c.clearRect(0, 0, L.width, L.height);
  c.fillStyle = theme.bg; c.fillRect(0, 0, L.width, L.height);
  c.font = `11px ${theme.font}`; c.textBaseline = "middle"; c.textAlign = "right"; c.fillStyle = theme.ink;
  const place = (rank) => scene.kept.indexOf(rank);
  let free = -Infinity;  // from where a name does not meet the one above
  scene.rows.forEach(([rank, lane], i) => {
    const y = L.rowY(i) + L.rowH(i) / 2;
    if (L.rowH(i) + L.gap < 11 && (lane !== "compute" || y < free)) return;
    const alike = lane === "compute" && scene.alike[place(rank)] > 1, two = alike && L.row >= 24;
    c.fillStyle = lane === "compute" ? nameColour(v, rank) : theme.soft;
    c.fillText(lane === "compute" ? `${scene.folds ? (alike ? "\u25b8 " : "\u25be ") : ""}${spoken(scene.nameOf(rank))}` : lane, LEFT - 8, two ? y - 6 : y);
    if (two) { c.fillStyle = theme.soft; c.fillText(spoken(`${scene.alike[place(rank)]} alike`), LEFT - 8, y + 7); }
    free = y + 11;
  });
  paintAxis(c, v);
  c.save(); c.beginPath(); c.rect(LEFT - 1, 0, L.width - LEFT - RIGHT + 2, L.bottom + 1); c.clip();
  const x0 = xOf(v, 0);
  if (!scene.chunks) {
    c.fillStyle = dotted(c, theme.soft);
    scene.rows.forEach(([rank, lane], i) => { if (lane === "compute") c.fillRect(x0, L.rowY(i), xOf(v, scene.ended.get(rank) ?? (scene.plan.length ? lastOf(scene, rank) : scene.endOf(rank))) - x0, L.row); });
    const under = scene.rows.findIndex(([rank]) => rank >= scene.own), y = Math.round(L.rowY(under) - L.gap / 2) + 0.5;
    if (under > 0) { c.strokeStyle = theme.ink; c.lineWidth = 1; c.beginPath(); c.moveTo(LEFT, y); c.lineTo(L.width - RIGHT, y); c.stroke(); }
  }
  c.globalAlpha = 0.28;  // what a run that goes on has still to do
  for (const [row, kind, start, end, begun] of scene.plan) if (end >= v.from && start <= v.to) {
    const x = xOf(v, start), w = Math.max(0.6, xOf(v, end) - x - 1);
    c.fillStyle = colourOf(v, { kind, version: null })[0]; c.fillRect(x, L.rowY(row), w, L.rowH(row));
    if (!begun) continue;  // what a rank was in when the run broke off
    c.globalAlpha = 1; c.strokeStyle = c.fillStyle; c.lineWidth = 1.5; c.setLineDash([3, 2]); c.strokeRect(x + 1, L.rowY(row) + 1, Math.max(1, w - 2), L.rowH(row) - 2); c.setLineDash([]);
    c.fillStyle = theme.ink; c.textAlign = "center"; c.textBaseline = "middle"; if (w > 60 && L.rowH(row) > 10 && !scene.ended.has(scene.rows[row][0])) c.fillText(begun, x + w / 2, L.rowY(row) + L.rowH(row) / 2);
    c.globalAlpha = 0.28;
  }
  c.globalAlpha = 1;
  paintBoxes(c, v);
  if (!scene.chunks) paintWaits(c, v);
  const messages = during(scene.transfers, v.from, v.to, scene.longest);
  if (L.gap >= 3 && messages.length > 2 * L.width) {  // too many for arrows: one stroke for all
    c.strokeStyle = theme.soft; c.globalAlpha = 0.3; c.lineWidth = 1; c.beginPath();
    for (const t of messages) { const [x0, y0, x1, y1] = course(v, t); c.moveTo(x0, y0); c.lineTo(x1, y1); }
    c.stroke(); c.globalAlpha = 1;
  } else if (L.gap >= 3 || messages.length < 400) for (const t of messages) paintTransfer(c, v, t, theme.soft, 0.8);
  if (L.ranks) paintMemory(c, v, look);
  c.fillStyle = theme.bg;
  const clear = (rank, y, height) => { const x = xOf(v, untilOf(v, rank)); if (x < L.width - RIGHT) c.fillRect(x + 1, y, L.width, height); };
  scene.rows.forEach(([rank], i) => clear(rank, L.rowY(i) - L.gap, L.rowH(i) + L.gap + Math.min(1, L.gap / 2)));
  c.restore();
  paintFailed(c, v);
}

/** Where a rank's first step ends, in the view of the first step of a trace and of what is pinned: its next one is not drawn beside the other's. */
const untilOf = ({ scene, from, to }, rank) => scene.firsts[1] && !from && to === scene.pages[0][1] ? scene.firsts[Number(rank >= scene.own)] : Infinity;

const nameColour = ({ scene, theme }, rank) => scene.ended.has(rank) ? theme.alarm : theme.ink;

/** What a rank waits for: its own row is cut open, and what comes on its other lanes then is exposed. */
function paintWaits(c, v) {
  const { scene, layout: L, theme, look } = v, hatch = hatching(c, look.wait);
  scene.rows.forEach(([rank, lane], i) => {
    const y = L.rowY(i), own = scene.waits[scene.kept.indexOf(rank)];
    for (const [start, end] of own) {
      if (end < v.from || start > v.to || start >= scene.begun.get(rank)) continue;
      const x = xOf(v, start), w = xOf(v, Math.min(end, scene.begun.get(rank) ?? end)) - x;
      if (w < 0.4) continue;
      if (lane === "compute") {
        c.fillStyle = theme.bg; c.fillRect(x, y, w, L.row); c.fillStyle = hatch; c.fillRect(x, y, w, L.row);
        if (w > 3) { c.strokeStyle = look.wait; c.lineWidth = 1; c.strokeRect(x + 0.5, y + 0.5, w - 1, L.row - 1); }
        const whole = x >= LEFT && x + w <= Math.min(L.width - RIGHT, xOf(v, untilOf(v, rank))) + 1;  // else its number is not of what is seen
        if (L.row >= 13 && whole) number(c, v, spoken(clockTime(scene, Math.min(end, scene.begun.get(rank) ?? end) - start)), x + w / 2, y + L.row / 2, w - 8);
      } else for (const s of during(scene.byRow[i], start, end, scene.end)) {
        const from = Math.max(s.start, start), to = Math.min(s.end, end);
        if (to > from) { c.fillStyle = look.wait; c.fillRect(xOf(v, from), y, Math.max(0.6, xOf(v, to) - xOf(v, from) - (to === s.end && xOf(v, to) - xOf(v, from) > 3)), L.rowH(i)); }
      }
    }
  });
}

/** Where a rank that failed ended a cross, which the right margin has room for, and a red line as far as the others went on. */
function paintFailed(c, v) {
  const { scene, layout: L, theme } = v, right = L.width - RIGHT;
  c.save(); c.beginPath(); c.rect(LEFT - 1, 0, L.width - LEFT + 1, L.bottom); c.clip();
  c.strokeStyle = c.fillStyle = theme.alarm; c.textAlign = "left"; c.textBaseline = "middle"; c.font = `600 11px ${theme.font}`;
  scene.rows.forEach(([rank, lane], i) => {
    const from = xOf(v, scene.ended.get(rank)), to = Math.min(right, xOf(v, scene.endOf(rank))), y = L.rowY(i) + L.row / 2, r = Math.min(6, L.row / 2 - 1);
    if (lane !== "compute" || !(from < right + 1)) return;
    c.lineWidth = 2.5; c.beginPath();
    c.moveTo(from + 3, y - r); c.lineTo(from + 3 + 2 * r, y + r); c.moveTo(from + 3 + 2 * r, y - r); c.lineTo(from + 3, y + r); c.stroke();
    if (to - from < 70) return;
    c.fillText(spoken("failed"), from + 2 * r + 9, y + 0.5);
    c.lineWidth = 1; c.beginPath(); c.moveTo(from + 2 * r + 48, y); c.lineTo(to, y); c.stroke();
  });
  c.restore();
}

/** A number over what is drawn, in the middle of so much room, or not at all. */
function number(c, { theme }, text, x, y, room) {
  c.font = `11px ${theme.font}`; c.textAlign = "center"; c.textBaseline = "middle";
  if (c.measureText(text).width > room) return;
  c.strokeStyle = theme.bg; c.lineWidth = 3; c.lineJoin = "round"; c.strokeText(text, x, y + 0.5);
  c.fillStyle = theme.ink; c.fillText(text, x, y + 0.5);
}

function dotted(c, colour) {
  const tile = document.createElement("canvas"); tile.width = tile.height = 5;
  const p = tile.getContext("2d");
  p.fillStyle = colour; p.globalAlpha = 0.55; p.fillRect(2, 2, 1, 1);
  return c.createPattern(tile, "repeat");
}

function hatching(c, colour) {
  const tile = document.createElement("canvas"); tile.width = tile.height = 6;
  const p = tile.getContext("2d");
  p.strokeStyle = colour; p.lineWidth = 1; p.beginPath();
  for (const d of [-6, 0, 6]) { p.moveTo(d, 6); p.lineTo(d + 6, 0); }
  p.stroke();
  return c.createPattern(tile, "repeat");
}

function paintAxis(c, v) {
  const { scene, layout: L, theme } = v, from = v.from * scene.factor, to = v.to * scene.factor;
  const step = niceStep(to - from, Math.max(3, L.width / 95));
  c.textAlign = "center"; c.textBaseline = "alphabetic"; c.lineWidth = 1;
  const places = Math.max(0, -Math.floor(Math.log10(step)));
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n++) {
    const x = Math.round(xOf(v, n * step / scene.factor)) + 0.5;
    c.strokeStyle = theme.rule; c.globalAlpha = 0.7; c.beginPath(); c.moveTo(x, TOP); c.lineTo(x, L.bottom + 3); c.stroke(); c.globalAlpha = 1;
    c.fillStyle = theme.soft; c.fillText((n * step).toFixed(places), x, L.bottom + 15);
  }
  c.textAlign = "right"; c.fillText(spoken(scene.unitName), LEFT - 28, L.bottom + 15);
}

/** What a lane beside the compute does: dark, so that no eye takes it for an update. */
const COVERED = ["#5F6B7A", "#FFFFFF"];
const colourOf = (v, s) => !v.lens ? v.look.phases[s.kind] || (v.scene.exposes ? COVERED : v.look.other)
  : s.version == null ? v.look.other : v.look.versions[s.version % v.look.versions.length];

/** What a box may say, longest first; the pointer tells what a short text leaves out. An update's number counts steps: it never stands
 * alone, nor beside boxes that count layers. By version, the second stands over the third. */
function textsOf(s, lens, [[which]]) {
  if (lens && s.version != null) return [`${s.label} v${s.version}`, s.label, `v${s.version}`, `${s.version}`];
  if (s.kind === "U" && which === "stage") return ["U"];
  const bare = s.label.replace(/^\d+(?=[A-Z]\d+$)/, "");
  return [s.label, bare, bare.replace(/^U\d+$|^[A-Za-z](?=\d+$)/, (cut) => (cut.length > 1 ? "U" : ""))];
}

/** The longest stretch of a box that no wait cuts open: its label stands there. */
function wholeOf({ scene }, { row, start, end }) {
  const [rank, lane] = scene.rows[row], waits = lane === "compute" && !scene.chunks ? scene.waits[scene.kept.indexOf(rank)] : [];
  let best = [start, start], from = start;
  for (let i = Math.max(0, lastBefore(waits, start, (e) => e[0])); from < end; i++) {
    const [opens, closes] = waits[i] ?? [end, end], to = Math.min(opens, end);
    if (to - from > best[1] - best[0]) best = [from, to];
    from = Math.max(from, closes);
  }
  return best;
}

function paintBoxes(c, v) {
  const { scene, layout: L } = v, alike = new Map();  // boxes of one kind and width, which say equally much
  for (const row of scene.byRow) {
    let half = -1;
    for (let i = Math.max(0, lastBefore(row, v.from, (s) => s.start)); i < row.length && row[i].start <= v.to; i++) {
      const s = row[i], x = xOf(v, s.start), w = xOf(v, s.end) - x, y = L.rowY(s.row);
      if (s.end < v.from || (w < 0.5 && half === (half = Math.floor(2 * x)))) continue;  // more boxes than pixels
      const [fill, ink] = colourOf(v, s);
      c.fillStyle = fill; c.fillRect(x, y, w > 3 ? w - 1 : Math.max(w, s.start === s.end ? 2 : 0.6), L.rowH(s.row));
      if (L.rowH(s.row) < 11 || w < 9) continue;
      const [open, close] = wholeOf(v, s).map((t) => xOf(v, t)), left = Math.max(open, LEFT), seen = Math.min(close, L.width - RIGHT) - left;  // what the view shows of it
      if (seen < 9) continue;
      const key = `${s.kind} ${Math.round(seen)} ${s.version == null}`, texts = textsOf(s, v.lens, scene.terms);
      if (!alike.has(key)) alike.set(key, { room: seen - 3, longest: [...texts], boxes: [] });
      const group = alike.get(key);
      texts.forEach((text, k) => { if (text.length > group.longest[k].length) group.longest[k] = text; });
      group.room = Math.min(group.room, seen - 3); group.boxes.push([texts, ink, left + (seen - 1) / 2, y + L.rowH(s.row) / 2]);
    }
  }
  c.textAlign = "center"; c.textBaseline = "middle"; c.font = `${L.row >= 16 ? 11 : 10}px ${v.theme.font}`;
  for (const { room, longest, boxes } of alike.values()) {
    const fits = longest.map((text) => c.measureText(text).width <= room), two = longest.length === 4;
    const stacked = two && L.row >= 22 && !fits[0] && fits[1] && fits[2], shown = fits.findIndex((fit, k) => fit && !(two && k === 1));
    for (const [texts, ink, x, y] of boxes) {
      c.fillStyle = ink;
      if (stacked) { c.fillText(texts[1], x, y - 5); c.fillText(texts[2], x, y + 6); } else if (shown >= 0) c.fillText(texts[shown], x, y + 0.5);
    }
  }
}

/** The two ends of a message's line: it leaves its sender's row and reaches its receiver's. */
function course(v, t) {
  const { layout: L } = v, a = t.leaves, b = t.reaches, down = b > a;
  return [xOf(v, t.start), L.rowY(a) + (down ? L.rowH(a) : 0), xOf(v, t.end), L.rowY(b) + (down ? 0 : L.rowH(b))];
}

function paintTransfer(c, v, t, colour, alpha, width = 1) {
  if (t.end < v.from || t.start > v.to) return;
  const [x0, y0, x1, y1] = course(v, t);
  c.globalAlpha = alpha; c.strokeStyle = c.fillStyle = colour; c.lineWidth = width;
  c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke();
  if (v.layout.gap >= 4) {
    const angle = Math.atan2(y1 - y0, x1 - x0), r = 3.5 + width;
    c.beginPath(); c.moveTo(x1, y1); c.lineTo(x1 - r * Math.cos(angle - 0.5), y1 - r * Math.sin(angle - 0.5));
    c.lineTo(x1 - r * Math.cos(angle + 0.5), y1 - r * Math.sin(angle + 0.5)); c.fill();
  }
  c.globalAlpha = 1;
}

/** Indices of the readings [tick, ...] that the view shows, and one on each side; of those in one pixel the highest and the last. */
function tellingOf(v, readings, height) {
  const from = Math.max(0, lastBefore(readings, v.from, (e) => e[0])), to = Math.min(readings.length, lastBefore(readings, v.to, (e) => e[0]) + 2);
  const told = [];
  for (let i = from; i < to;) {
    const pixel = Math.floor(xOf(v, readings[i][0]));
    let high = i, last = i;
    while (++i < to && Math.floor(xOf(v, readings[i][0])) === pixel) { if (height(i) > height(high)) high = i; last = i; }
    told.push(high); if (last > high) told.push(last);
  }
  return told;
}

/** The bytes at the top of a strip: of the highest peak, or of the device's memory where that is within sight. */
const inSight = ({ scene, limit }) => limit && scene.peak >= 0.4 * limit;
const topOf = (v) => Math.max(v.scene.peak, inSight(v) ? v.limit * 1.04 : 0) || 1;
const memoryY = (v, rank, bytes) => v.layout.stripY(rank) + v.layout.strip * (1 - bytes / topOf(v));

function paintMemory(c, v, look) {
  const { scene, layout: L, theme, limit } = v, onScale = inSight(v), y = (rank, b) => memoryY(v, rank, b);
  for (const rank of L.strips) {
    const all = scene.levels[rank], ends = untilOf(v, scene.kept[rank]), picked = tellingOf(v, all, (i) => scene.totals[rank][i]).filter((i) => all[i][0] < ends), levels = picked.map((i) => all[i]);
    const base = new Float64Array(levels.length), last = Math.min(ends, all[(picked.at(-1) ?? 0) + 1]?.[0] ?? scene.ended.get(scene.kept[rank]) ?? scene.endOf(scene.kept[rank]));
    const steps = (from, to, by) => {  // along the tops of the stack so far, left to right or back
      for (let i = from; i !== to; i += by) {
        const x = xOf(v, levels[i][0]), next = xOf(v, i + 1 < levels.length ? levels[i + 1][0] : last), h = y(rank, base[i]);
        c.lineTo(by > 0 ? x : next, h); c.lineTo(by > 0 ? next : x, h);
      }
    };
    look.memory.forEach(([, colour], k) => {
      if (!scene.kinds[k] || !levels.length) return;
      c.beginPath(); steps(0, levels.length, 1);
      levels.forEach((level, i) => { base[i] += level[k + 1]; });
      steps(levels.length - 1, -1, -1); c.closePath(); c.fillStyle = colour; c.fill();
    });
    const its = L.strips.length < L.ranks ? scene.pinnedMost : scene.pinnedOf[rank], pinned = scene.levels[its] ?? [];
    const until = pinned.length && Math.min(untilOf(v, scene.kept[its]), scene.endOf(scene.kept[its]));
    c.strokeStyle = theme.ink; c.lineWidth = 1; c.setLineDash([4, 3]); c.beginPath();  // what the pinned ones held
    for (const i of tellingOf(v, pinned, (i) => scene.totals[its][i])) {
      if (pinned[i][0] >= until) break;
      const h = y(rank, scene.totals[its][i]);
      c.lineTo(xOf(v, pinned[i][0]), h); c.lineTo(xOf(v, Math.min(pinned[i + 1]?.[0] ?? until, until)), h);
    }
    c.stroke(); c.setLineDash([]);
    c.strokeStyle = theme.rule; c.lineWidth = 1; c.beginPath();
    c.moveTo(xOf(v, 0), Math.round(y(rank, 0)) + 0.5); c.lineTo(xOf(v, scene.end), Math.round(y(rank, 0)) + 0.5); c.stroke();
    for (let tick = L.strip < HIGHEST ? topOf(v) : niceStep(topOf(v), 3), step = tick; tick < 0.95 * topOf(v); tick += step) {  // a scale, where there is room
      c.strokeStyle = theme.soft; c.globalAlpha = 0.5; c.beginPath(); c.moveTo(LEFT, Math.round(y(rank, tick)) + 0.5); c.lineTo(L.width - RIGHT, Math.round(y(rank, tick)) + 0.5); c.stroke(); c.globalAlpha = 1;
      number(c, v, size(tick), LEFT + 24, y(rank, tick), Infinity);
    }
    c.fillStyle = theme.soft;
    for (const [start, end] of scene.unread[rank]) c.fillRect(xOf(v, start), Math.round(y(rank, 0)) - 1, xOf(v, end) - xOf(v, start), 3);
    if (onScale) {
      const h = Math.round(y(rank, limit)) + 0.5;
      if (scene.peak > limit) {  // what the device does not hold
        c.save(); c.beginPath(); c.rect(LEFT, L.stripY(rank) - 1, L.width, h - L.stripY(rank) + 1); c.clip();
        c.beginPath(); steps(0, levels.length, 1); c.lineTo(xOf(v, last), y(rank, 0)); c.lineTo(LEFT, y(rank, 0)); c.closePath();
        c.fillStyle = hatching(c, theme.alarm); c.fill(); c.restore();
      }
      c.strokeStyle = theme.alarm; c.setLineDash([5, 4]); c.beginPath();
      c.moveTo(xOf(v, v.from), h); c.lineTo(xOf(v, v.to), h); c.stroke(); c.setLineDash([]);
    }
  }
  c.textBaseline = "alphabetic"; c.font = `11px ${theme.font}`; c.textAlign = "right";
  const right = L.width - RIGHT, at = L.memoryTop - 7;
  const device = spoken(!limit ? "" : !onScale ? `limit ${deviceSize(limit)}, far above` : `device memory ${deviceSize(limit)}`
    + (scene.peak > limit ? `, exceeded by ${size(scene.peak - limit)}` : ""));
  const taken = device ? c.measureText(device).width + (onScale ? 45 : 21) : 0;
  if (device) {  // a little to the left: the playhead is at the end where all was played
    c.fillStyle = onScale ? theme.alarm : theme.soft; c.fillText(device, right - 5, at);
    if (onScale) {
      c.setLineDash([5, 4]); c.beginPath(); c.moveTo(right - taken + 12, at - 4); c.lineTo(right - taken + 35, at - 4); c.stroke(); c.setLineDash([]);
    }
  }
  const one = L.strips.length < L.ranks ? ` of ${scene.names[L.strips[0]]}, the fullest` : "", dashed = L.strips.some((rank) => scene.levels[scene.pinnedOf[rank]]?.length) ? "; dashed: pinned" : "";
  c.fillStyle = theme.soft; c.textAlign = "left";
  const thick = L.strips.some((rank) => scene.unread[rank].some(([start, end]) => start < v.to && end > v.from)) ? "; grey line: what rises inside boxes is not drawn" : "";
  const scale = `memory by kind${one}${dashed}`, left = `${scale}; left: held now`;
  c.fillText([left + thick, left, scale].map(spoken).find((text) => c.measureText(text).width < right - LEFT - taken) ?? "", LEFT, at);
}

/** The markers of the peaks: where, and of which rank; of ranks whose strips are thin the highest peak's alone. Of a peak before
 * (`off` -1) or behind (1) the view, at the view's edge. */
function marksOf(v) {
  const { scene, layout: L } = v, thin = L.strip < THIN, most = highest(scene);
  return scene.peaks.flatMap((peak, rank) => {
    if (!peak || !L.strips.includes(rank) || (thin && rank !== most)) return [];
    const off = (peak.tick > v.to) - (peak.tick < v.from);
    return [{ rank, off, x: xOf(v, off > 0 ? v.to : off ? v.from : peak.tick), y: Math.max(memoryY(v, rank, peak.bytes), L.stripY(rank) + 2) }];
  });
}

function paintMarks(c, v) {
  for (const { rank, off, x, y } of marksOf(v)) {
    const on = v.under?.peak === rank || v.listed === rank;
    if (off) {  // an arrow that points to it
      const r = on ? 6 : 4.5;
      c.beginPath(); c.moveTo(x, y); c.lineTo(x - off * 1.6 * r, y - r); c.lineTo(x - off * 1.6 * r, y + r); c.closePath();
      c.fillStyle = on ? v.theme.accent : v.theme.ink; c.fill();
    }
    const where = off > 0 ? ", later" : off ? ", earlier" : "", text = spoken(`peak ${size(v.scene.peaks[rank].bytes)}${where}`);
    const side = off || (x > v.layout.width / 2 ? 1 : -1), half = c.measureText(text).width / 2 + 14;
    number(c, v, text, x - side * half, Math.max(y, v.layout.stripY(rank) + 6), Infinity);
    if (off) continue;
    const { tick } = v.scene.peaks[rank], drawn = [tick, tick - 0.5].map((t) => sum(levelAt(v.scene.levels[rank], t) ?? []));  // ticks are whole
    const below = memoryY(v, rank, Math.max(...drawn));
    if (below > y + 4) {  // higher than what is drawn, which was read at the ends of actions: its action's last level is left of it
      c.strokeStyle = v.theme.ink; c.lineWidth = 2; c.setLineDash([3, 2]); c.beginPath(); c.moveTo(x, y); c.lineTo(x, below); c.stroke(); c.setLineDash([]);
    }
    c.beginPath(); c.arc(x, y, on ? 5 : 3.5, 0, 7); c.fillStyle = on ? v.theme.accent : v.theme.bg; c.fill();
    c.strokeStyle = on ? v.theme.bg : v.theme.ink; c.lineWidth = 1.5; c.stroke();
  }
}

const flying = (v) => during(v.scene.transfers, v.t, v.t, v.scene.longest).filter((m) => v.t < m.end && v.t <= untilOf(v, m.dst));

function paintFrame(c, v) {
  const { scene, layout: L, theme } = v, x = xOf(v, v.t), right = L.width - RIGHT;
  c.drawImage(v.layer, 0, 0, L.width, L.height);
  if (x < right) {
    const left = Math.max(LEFT, x), caption = L.ranks ? 20 : 0;  // the caption between schedule and memory stays clear
    c.globalAlpha = theme.fade; c.fillStyle = theme.bg;
    if (!scene.plan.length) c.fillRect(left, 0, right - left + 3, L.memoryTop - caption);
    c.fillRect(left, L.memoryTop, right - left + 3, L.bottom - L.memoryTop);
    c.globalAlpha = 1;
  }
  for (const t of flying(v)) {
    const [x0, y0, x1, y1] = course(v, t), part = (v.t - t.start) / (t.end - t.start);
    const px = x0 + (x1 - x0) * part, py = y0 + (y1 - y0) * part;
    if (px < LEFT) continue;
    c.fillStyle = theme.ink; c.beginPath(); c.arc(px, py, 3.5, 0, 7); c.fill();
  }
  if (L.ranks) paintMarks(c, v);
  if (scene.chunks) paintChunks(c, v);
  if (v.under) outline(c, v);
  const on = Math.max(LEFT, Math.min(right, x)), off = Math.sign(Math.round(x - on));  // beyond the view: a broken line at its edge
  c.strokeStyle = c.fillStyle = theme.accent; c.lineWidth = 1.5; c.setLineDash(off ? [3, 5] : []);
  c.beginPath(); c.moveTo(on, 0); c.lineTo(on, L.bottom + 4); c.stroke(); c.setLineDash([]);
  c.beginPath(); c.moveTo(on - (off ? 0 : 5), 0); c.lineTo(on + (off ? 8 * off : 5), off ? 5 : 0); c.lineTo(on, off ? 10 : 7); c.fill();
  c.font = `10px ${theme.font}`; c.textAlign = "right"; c.textBaseline = "middle";
  for (const rank of L.strips) if (L.strip + L.space >= 11 || rank % 8 === 0) {
    const level = heldAt(scene, rank, Math.min(v.t, untilOf(v, scene.kept[rank]) - 0.5)), y = L.stripY(rank), two = L.strip >= 30, now = size(level ? sum(level) : 0);
    c.fillStyle = theme.ink; if (two) c.fillText(spoken(scene.holders[rank]), LEFT - 8, y + L.strip / 2 - 7);
    c.fillStyle = theme.soft; c.fillText(two ? now : `${scene.names[rank].replace(/^ranks? /, "r")}  ${now}`, LEFT - 8, y + L.strip / 2 + (two ? 7 : 0), LEFT - 12);
  }
  if (v.to - v.from < scene.end * 0.999) {  // where in the whole this view lies, and the playhead
    const whole = right - LEFT;
    c.fillStyle = theme.rule; c.fillRect(LEFT, L.height - 4, whole, 3);
    c.fillStyle = theme.soft; c.fillRect(LEFT + whole * v.from / scene.end, L.height - 4, Math.max(8, whole * (v.to - v.from) / scene.end), 3);
    c.fillStyle = theme.accent; c.fillRect(LEFT + whole * v.t / scene.end - 1.5, L.height - 6, 3, 6);
  }
}

function outline(c, v) {
  const { under: u, layout: L, theme, scene } = v;
  c.save(); c.beginPath(); c.rect(LEFT - 1, 0, L.width - LEFT - RIGHT + 2, L.bottom); c.clip();
  if (u.span) {
    const s = u.span, x = xOf(v, s.start);
    c.strokeStyle = theme.ink; c.lineWidth = 2; c.strokeRect(x, L.rowY(s.row), Math.max(2, xOf(v, s.end) - x), L.rowH(s.row));
    for (const t of scene.sent[`${s.src} ${s.message}`] || []) if (t.dst === scene.rows[s.row][0]) paintTransfer(c, v, t, theme.ink, 1, 2);
  }
  if (u.transfer) paintTransfer(c, v, u.transfer, theme.ink, 1, 2);
  c.restore();
}

// ---- hover -----------------------------------------------------------------------------------------------------------

function find(v, x, y) {
  const { scene, layout: L } = v, t = tOf(v, x), slack = (v.to - v.from) / L.width * 2;
  const mark = L.ranks && marksOf(v).find((m) => Math.hypot(x - m.x, y - m.y) < 9);
  if (mark) return { peak: mark.rank };
  if (scene.folds && x < LEFT && y < L.memoryTop - 20) return { fold: true };
  for (const rank of L.strips)
    if (x < LEFT && scene.peaks[rank] && y >= L.stripY(rank) && y <= L.stripY(rank) + L.strip) return { peak: rank };
  if (x < LEFT || x > L.width - RIGHT + 2) return null;
  for (let i = 0; i < L.rows; i++) if (y >= L.rowY(i) && y <= L.rowY(i) + L.rowH(i)) {
    const row = scene.byRow[i], span = spanAt(row, t) || row.find((s) => s.start === s.end && Math.abs(s.start - t) < slack);
    if (t > untilOf(v, scene.rows[i][0])) return null;
    return span ? { span } : t >= 0 && t <= scene.end ? { idle: i, t } : null;
  }
  let best = null, near = 6;
  if (y < L.memoryTop) for (const m of during(scene.transfers, v.from, v.to, scene.longest)) {
    const [x0, y0, x1, y1] = course(v, m), l2 = (x1 - x0) ** 2 + (y1 - y0) ** 2 || 1;
    const p = Math.max(0, Math.min(1, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / l2));
    const d = Math.hypot(x - x0 - p * (x1 - x0), y - y0 - p * (y1 - y0));
    if (d < near) { near = d; best = { transfer: m }; }
  }
  if (best) return best;
  for (const rank of L.strips) if (y >= L.stripY(rank) && y <= L.stripY(rank) + L.strip) return { memory: rank, t };
  return null;
}

/** What a box is: "F0: forward of micro-batch 0, stage 2", or "B7: backward of layer 7, pass 1". */
function about({ scene, look }, s) {
  const action = /^(\d+)([A-Z])(\d+)$/.exec(s.name), phase = action && look.phases[action[2]]?.[2];
  if (!phase) return s.size == null ? s.label : s.name;  // a message with its round
  const number = { stage: action[1], micro_batch: action[3] }, told = action[2] === "U" ? scene.terms.filter(([which]) => which === "stage") : scene.terms;
  return `${s.label}: ${phase}${told.length ? " of " : ""}${told.map(([which, word]) => `${word} ${countedAs(word, number[which])}`).join(", ")}`;
}

/** Steps are counted from 1, as everywhere in a panel; what a schedule numbers, from 0. */
const countedAs = (word, number) => Number(number) + (word === "step");

/** The message that a box waited for, by the name that boxes have: "F0 from rank 1". */
const messageOf = (scene, s) => `${scene.sent[`${s.src} ${s.message}`]?.[0].label ?? s.message} from rank ${s.src}`;

const rowName = (scene, [rank, lane]) => `${scene.nameOf(rank)}${lane === "compute" ? "" : ` ${lane}`}`;

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function tell(v, u) {
  const { scene, look } = v, time = (t) => clockTime(scene, t);
  if (u.span) {
    const s = u.span, [rank, lane] = scene.rows[s.row], lines = [];
    lines.push(about(v, s) + (scene.all.ranks > 1 || lane !== "compute" ? `, ${rowName(scene, [rank, lane])}` : ""));
    lines.push(`${time(s.start)} to ${time(s.end)}, takes ${time(s.end - s.start)}`);
    if (s.version != null) lines.push(`weight version ${s.version}`);
    if (s.size != null) lines.push(`from rank ${s.src}, ${exactSize(s.size)}`);
    const open = waitedIn(scene, rank, s.start, s.end);
    if (open) lines.push(lane === "compute" ? `cut open: for ${time(open)} of it its rank waits for a message or a sum` : `exposed for ${time(open)}: the rank has nothing else to do`);
    if (s.waited) lines.push(`${lane === "compute" ? "its rank had nothing to do" : "this lane was free"} for ${time(s.waited)} before it` + (s.message ? `: it needs ${messageOf(scene, s)}` : ""));
    for (const part of s.name.split("+").slice(0, 3)) for (const t of scene.sent[`${rank} ${part}`] || [])
      lines.push(`sends ${exactSize(t.size)} to ${scene.oneOf(t.dst)}`);
    return lines;
  }
  if (u.transfer) {
    const t = u.transfer;
    return [`result of ${t.label}: ${scene.oneOf(t.src)} to ${scene.oneOf(t.dst)}`, exactSize(t.size), `leaves at ${time(t.start)}, arrives at ${time(t.end)}`];
  }
  if (u.fold) return [scene.alike.some((n) => n > 1) ? "click: a row for each rank" : "click: one row for ranks that are alike"];
  if ("peak" in u) {
    const peak = scene.peaks[u.peak];
    return [`peak of ${scene.names[u.peak]}: ${exactSize(peak.bytes)}`, `${peak.where}, at ${time(peak.tick)}`,
      ...peak.kinds.map(([kind, b]) => `${look.memory[kind][0]} ${size(b)}`).reverse(), "click: a list of it"];
  }
  if ("memory" in u) {
    const level = heldAt(scene, u.memory, u.t) || [0];
    const kinds = look.memory.map(([kind], k) => [kind, level[k + 1] || 0]).filter(([, b]) => b).reverse();
    const unread = scene.unread[u.memory].some(([start, end]) => start <= u.t && u.t < end);
    return [`${scene.names[u.memory]} at ${time(u.t)}: ${exactSize(sum(level))}`, ...kinds.map(([kind, b]) => `${kind} ${exactSize(b)}`),
      ...(unread ? ["at the ends of actions alone: what rises inside them is not drawn here"] : [])];
  }
  const row = scene.byRow[u.idle], next = row[lastBefore(row, u.t, (s) => s.start) + 1], name = rowName(scene, scene.rows[u.idle]);
  const is = scene.rows[u.idle][1] === "compute" && name.startsWith("ranks ") ? "are" : "is";
  return [`${name} ${scene.chunks ? "receives nothing" : `${is} ${doing(scene, u.idle, u.t)}`}`, next
    ? `until ${next.label} at ${time(next.start)}` + (next.message ? `, which needs ${messageOf(scene, next)}` : "")
    : "nothing more to do"];
}

/** What the number of a box counts, by an example: "B1: micro-batch 1"; "" where there is one of it. */
function countedText({ spans, terms }) {
  const [which, word] = terms[0];
  for (const s of spans) {
    const [, stage, kind, number] = /^(\d+)([A-Z])(\d+)$/.exec(s.name) ?? [], value = which === "stage" ? stage : number;
    if (!kind || kind === "U" || !Number(value)) continue;
    const both = terms.length > 1 && /^\d/.test(s.label);  // where a rank has several stages
    return `${s.label}: ${both ? `${terms.find(([each]) => each === "stage")[1]} ${stage}, ` : ""}${word} ${countedAs(word, value)}`;
  }
  return "";
}

/** What a row does where it has no box. */
function doing(scene, row, t) {
  const [rank, lane] = scene.rows[row];
  if (t >= scene.ended.get(rank)) return "gone: it failed";
  if (lane !== "compute") return "free";
  if (t >= scene.begun.get(rank)) return "in what it had begun";
  if (t >= scene.endOf(rank)) return "done";
  return scene.waits[scene.kept.indexOf(rank)].some(([start, end]) => start <= t && t < end) ? "waiting: something for it is on its way, or was lost with its sender" : "idle";
}

/** "; rank 1 failed", of the trace itself. */
function failedText({ failed, own, nameOf }, before) {
  const names = failed.filter((rank) => rank < own).map(nameOf);
  return names.length ? `${before}${names.join(", ")} failed` : "";
}

/** Ticks of a stretch in which a rank waits. */
const waitedIn = (scene, rank, from, to) => scene.chunks ? 0
  : scene.waits[scene.kept.indexOf(rank)].reduce((sum, [start, end]) => sum + Math.max(0, Math.min(end, to) - Math.max(start, from)), 0);

function nowText(v) {
  if (v.scene.chunks) return `${roundText(v.scene, v.t)} ${wholeText(v.scene, v.t)}.`;
  const { scene } = v, t = v.t === v.to ? v.t - 0.5 : v.t;  // at the end of the view the boxes that it shows
  const at = (row, i) => t > untilOf(v, row[0]) ? "done" : spanAt(scene.byRow[i], t)?.label || doing(scene, i, t).split(":")[0];
  const busy = scene.rows.slice(0, 8).map((row, i) => spoken(`${rowName(scene, row)} ${at(row, i)}`));
  const way = flying(v), air = way.length ? `; on the way: ${way.slice(0, 3).map((t) => `${t.label} to ${scene.oneOf(t.dst)}`).join(", ")}${way.length > 3 ? ", ..." : ""}` : "";
  if (scene.plan.length && !scene.known) return "Nothing has run yet: the pale boxes are the plan.";
  if (v.t >= scene.known) return `${scene.unfinished || scene.plan.length ? "So far" : "End"}, after ${clockTime(scene, scene.endOf(0))}: ${plural(scene.all.spans.filter(([row]) => scene.all.rows[row][0] < scene.own).length, "box")
    .replace("boxs", "boxes")}${scene.own > 1 ? `, ${plural(scene.all.transfers.filter(([src]) => src < scene.own).length, "message")}, ${plural(scene.own, "rank")}` : ""}${failedText(scene, "; ")}.`;
  return `Now: ${busy.join(patterns.length ? MARKS[", "] : ", ")}${scene.rows.length > 8 ? ", ..." : ""}${air}.`.replace(/\.{4}$/, "...");
}

