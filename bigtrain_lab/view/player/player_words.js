/* The words of the player in the reader's language. Kernel or page give them as [regular expression, translation], that with the most
 * text first (view/spoken.py); without any, all stays English. As in core/said.py, what a hole holds is translated in turn.
 */

let patterns = [];
const known = new Map(), MOST_KNOWN = 5000;  // times are parts of texts, so they never end
const HOLE = /\{n?(\d+)\}/g, PROSE = /[A-Za-z]{2} (?:a )?[a-z]{2}/, MANY = 6;
const MARKS = { ", ": "，", "; ": "；", ": ": "：" };

function learn(words) {
  patterns = (words ?? []).map(([source, translation]) => [new RegExp(`^(?:${source})$`, "s"), translation]);
  known.clear();
}

function spoken(text) {
  if (!patterns.length || typeof text !== "string" || !/[A-Za-z]{2}/.test(text)) return text;
  if (known.size > MOST_KNOWN) known.clear();
  if (!known.has(text)) known.set(text, spokenAnew(text));
  return known.get(text);
}

function spokenAnew(text) {
  const sentences = text.split(/(?<=[.!?])(?<!\.\.) +(?!\.)/), bare = text.trim().replace(/([^.])\.$/, "$1");
  if (sentences.length > 1) return sentences.map(spoken).join("");
  if (bare !== text) return text.replace(bare, () => spoken(bare)).replace(/\.$/, spoken(bare) === bare ? "." : "。");
  let likely = "";  // by a template of many letters, which may hold what nobody has translated
  for (const [pattern, translation] of patterns) {
    const found = pattern.exec(text);
    if (!found) continue;
    const holes = found.slice(1).map(spoken), told = translation.replace(HOLE, (_, hole) => holes[hole]);
    if (!holes.some((hole) => PROSE.test(hole))) return told;
    if (translation.replace(HOLE, "").length > MANY) likely ||= told;
  }
  const parts = text.split(/(, |; |: )/);
  return likely || (parts.length > 1 ? parts.map((part) => MARKS[part] ?? spoken(part)).join("") : text);
}

/** Attributes that hold words. */
const SPOKEN = new Set(["title", "aria-label", "aria-valuetext"]);
