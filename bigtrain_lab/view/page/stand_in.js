/* What stands in for a kernel's half of the player on a page: the model of a widget, what unpacks a trace, and the colours of
 * the browser's theme.
 */

function standIn(values) {  // for the model that anywidget gives a widget
  const hears = {};
  return {
    get: (name) => values[name], off() {}, send() {}, save_changes() {},
    on(what, hear) { (hears[what] ||= []).push(hear); },
    set(name, value) { values[name] = value; for (const hear of hears[`change:${name}`] || []) hear(); },
  };
}

async function unpack(body) {
  const packed = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function onDark(dark) { document.body.dataset.jpThemeLight = !dark; }  // the name that JupyterLab gives it, which the player watches

const dark = matchMedia("(prefers-color-scheme: dark)");
onDark(dark.matches); dark.addEventListener("change", () => onDark(dark.matches));
