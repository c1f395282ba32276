/* The picture as a file, with its legend: PNG from a canvas, SVG from the same painting, written down as text. */

/** What a canvas is told, as the text of an SVG: no more of a canvas than the painting of this player asks for. */
class SvgContext {
  constructor() {
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "11px sans-serif", textAlign: "left", textBaseline: "alphabetic" });
    Object.assign(this, { parts: [], defs: [], depth: [], path: "", box: "", dash: "", ruler: document.createElement("canvas").getContext("2d") });
  }
  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash } = this;
    this.depth.push({ groups: 0, look: { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash } });
  }
  restore() { const { groups, look } = this.depth.pop(); this.parts.push("</g>".repeat(groups)); Object.assign(this, look); }
  open(attributes) { this.parts.push(`<g ${attributes}>`); this.depth.at(-1).groups++; }
  translate(x, y) { this.open(`transform="translate(${x} ${y})"`); }
  clip() { this.defs.push(`<clipPath id="c${this.defs.length}"><path d="${this.path}"/></clipPath>`); this.open(`clip-path="url(#c${this.defs.length - 1})"`); }
  createPattern(tile) {
    const [w, h] = [tile.width, tile.height];
    this.defs.push(`<pattern id="p${this.defs.length}" width="${w}" height="${h}" patternUnits="userSpaceOnUse"><image width="${w}" height="${h}" href="${tile.toDataURL()}"/></pattern>`);
    return `url(#p${this.defs.length - 1})`;
  }
  setLineDash(dash) { this.dash = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : ""; }
  measureText(text) { this.ruler.font = this.font; return this.ruler.measureText(text); }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${round(x)} ${round(y)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${round(x)} ${round(y)}`; }
  closePath() { this.path += "Z"; }
  rect(x, y, w, h) { this.path += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}Z`; }
  arc(x, y, r) { this.path += `M${round(x - r)} ${round(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`; }  // whole circles
  draw(fill, stroke) {
    if (this.path) this.parts.push(`<path d="${this.path}" fill="${fill}"${stroke ? ` stroke="${stroke}" stroke-width="${this.lineWidth}"${this.dash}` : ""}${this.opacity}/>`);
  }
  get opacity() { return this.globalAlpha === 1 ? "" : ` opacity="${this.globalAlpha}"`; }
  fill() { this.draw(this.fillStyle, ""); }
  stroke() { this.draw("none", this.strokeStyle); }
  within(x, y, w, h, act) { const path = this.path; this.path = ""; this.rect(x, y, w, h); act(); this.path = path; }
  fillRect(x, y, w, h) { if (w > 0 && h > 0) this.within(x, y, w, h, () => this.fill()); }
  strokeRect(x, y, w, h) { this.within(x, y, w, h, () => this.stroke()); }
  clearRect() {}
  drawImage() {}  // the hidden layer: it was painted before
  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign], base = this.textBaseline === "middle" ? "central" : "auto";
    const [, weight, px, family] = /^(?:(\w+) )?(\d+)px (.*)$/.exec(this.font);
    this.parts.push(`<text x="${round(x)}" y="${round(y)}" font-size="${px}"${weight ? ` font-weight="${weight}"` : ""} font-family="${xml(family)}" text-anchor="${anchor}" `
      + `dominant-baseline="${base}" fill="${this.fillStyle}"${this.opacity}>${xml(text)}</text>`);
  }
  text(width, height) {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><defs>${this.defs.join("")}</defs>${this.parts.join("")}</svg>`;
  }
}

const round = (value) => Math.round(value * 100) / 100;
const xml = (text) => String(text).replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);

/** Legend and picture. Returns the height. */
function paintWhole(c, v) {
  const { layout: L, theme } = v;
  let x = 8, y = 14;
  c.save();
  c.fillStyle = theme.bg; c.fillRect(0, 0, L.width, L.height + legendHeight(c, v));
  for (const [text, fill, gap] of legendOf(v)) {
    c.font = `11px ${theme.font}`; c.textAlign = "left"; c.textBaseline = "middle";
    const wide = c.measureText(text).width + (fill ? 30 : 14) + (gap ? 12 : 0);
    if (x + wide > L.width) { x = 8; y += 18; }
    if (gap) x += 12;
    if (fill) { c.fillStyle = fill === "waits" ? hatching(c, v.look.wait) : fill === "idle" ? dotted(c, theme.soft) : fill; c.fillRect(x, y - 6, 11, 11); x += 16; }
    c.fillStyle = theme.soft; c.fillText(text, x, y);
    x += c.measureText(text).width + 14;
  }
  c.translate(0, y + 12); paintLayer(c, v); paintFrame(c, v);
  c.restore();
  return y + 12 + L.height;
}

function legendHeight(c, v) {
  c.font = `11px ${v.theme.font}`;
  const wide = legendOf(v).reduce((total, [text, , gap]) => total + c.measureText(text).width + 30 + (gap ? 12 : 0), 0);
  return 26 + 18 * Math.ceil(wide / v.layout.width);
}

/** Save what is seen: as an SVG that scales, or as a PNG of twice the size. */
function saveAs(v, kind) {
  if (!v.scene || !v.layout) return;
  const name = `${v.scene.clock}-${Date.now()}.${kind}`, give = (blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const svg = new SvgContext(), height = paintWhole(svg, v);
  if (kind === "svg") { give(new Blob([svg.text(v.layout.width, height)], { type: "image/svg+xml" })); return; }
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * v.layout.width, height: 2 * height }), c = canvas.getContext("2d");
  const plain = Object.assign(Object.create(v), { layer: document.createElement("canvas") });
  plain.layer.width = plain.layer.height = 1;  // painted here, and not copied
  c.scale(2, 2); paintWhole(c, plain);
  canvas.toBlob(give);
}
