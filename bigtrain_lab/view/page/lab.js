/* A lab on a page: its controls, and the player beside them. What was predicted beforehand is shown at once; the rest is asked of
 * Python, which a worker loads meanwhile. Settings live in the address. Joined behind the player and stand_in.js.
 */

const lab = JSON.parse(document.getElementById("btl-lab").textContent), at = (id) => document.getElementById(`btl-${id}`);
const model = standIn({ data: null, note: "", live: false, look: lab.look, limit_bytes: null, height: null });
const defaults = Object.fromEntries(lab.controls.map((each) => [each.name, each.value])), settings = { ...defaults }, made = {};
let moved = lab.controls.find((each) => each.kind === "range"), worker = null, asking = null, next = null, loading = "Python is loading. It then predicts what you choose.";

const PAUSE = 200;  // milliseconds without a move, before Python predicts what was not asked for
function changed(to = settings) { return Object.fromEntries(Object.entries(to).filter(([name, value]) => value !== defaults[name])); }
function key(of) { return JSON.stringify(Object.entries(of).sort()); }

function show(answer, of) {
  at("trouble").hidden = !answer.refused; at("trouble").textContent = answer.refused ?? "";
  model.set("note", answer.refused ? "of the settings before" : "");
  for (const row of at("controls").children) row.hidden = answer.idle.includes(row.dataset.name);
  at("status").textContent = worker && !document.body.dataset.python ? loading : "";
  if (!answer.refused) {
    model.set("data", new TextEncoder().encode(answer.data));
    for (const part of ["answers", "numbers", "why"]) at(part).innerHTML = answer[part];
    if (at("about")) at("about").textContent = answer.about;
  }
  globalThis.btlMade = made;  // what a test reads, or a reader's console
  globalThis.btlAnswer = { ...answer, settings: { ...defaults, ...of } };
}

async function ask() {
  const of = changed(), known = made[key(of)];
  history.replaceState(null, "", location.pathname + location.search + (Object.keys(of).length ? `#${new URLSearchParams(of)}` : ""));
  if (known) {
    next = null;
    const answer = JSON.parse(await known());
    if (key(of) === key(changed())) show(answer, of);
    return setTimeout(ahead, PAUSE);
  }
  if (!worker) return show({ refused: "This page was built without Python, and holds no prediction of these settings.", idle: [] }, of);
  next = of; at("status").textContent = loading;
  if (!asking) send();
}

/* While Python has nothing to do it predicts what a reader may ask for next: the values of the slider that was moved last. */
function ahead() {
  if (asking || !moved || !document.body.dataset.python) return;
  const { name, values } = moved, place = values.indexOf(settings[name]), far = (value) => Math.abs(values.indexOf(value) - place);
  const nearest = [...values].sort((a, b) => far(a) - far(b)).map((value) => changed({ ...settings, [name]: value }));
  if (next = nearest.find((of) => !made[key(of)])) send();
}

function send() {
  [asking, next] = [next, null];
  worker.postMessage({ module: "bigtrain_lab.view.live", name: "answered", given: [lab.name, JSON.stringify(asking)] });
}

function heard({ data }) {
  if (data.ready) { loading = "predicting"; at("status").textContent = ""; document.body.dataset.python = "ready"; return ahead(); }
  const of = asking, answer = data.answer ?? JSON.stringify({ refused: `Python failed in this page: ${data.failed}`, idle: [] });
  made[key(of)] = () => answer; asking = null;
  if (next && key(next) !== key(of)) return send();
  next = null;
  if (key(of) === key(changed())) show(JSON.parse(answer), of);  // else it was made ahead, or the reader went on
  setTimeout(ahead, PAUSE);
}

function control(each) {
  const { name, label, help, kind, values, value } = each;
  const row = element("label", "", "", { title: help, "data-name": name }), told = element("output", "", "");
  row.append(element("span", "", label));
  let input;
  if (kind === "choice") {
    input = element("select", "", "", { name });
    input.append(...values.map((each) => element("option", "", String(each))));
    input.selectedIndex = values.indexOf(value);
  } else if (kind === "yes") {
    input = element("input", "", "", { name, type: "checkbox" });
    input.checked = value;
  } else {
    input = element("input", "", "", { name, type: "range", min: 0, max: values.length - 1, step: 1 });
    input.value = values.indexOf(value);
  }
  const [, unit = ""] = label.split(/, |，/);
  const tell = () => {
    if (kind !== "range") return;
    told.textContent = Number(settings[name]).toLocaleString("en");
    setOnce(input, "aria-valuetext", `${told.textContent} ${unit}`.trim());  // not its place among the values
  };
  const put = (to) => {
    settings[name] = to; tell();
    if (kind === "choice") input.selectedIndex = values.indexOf(to);
    else if (kind === "yes") input.checked = to; else input.value = values.indexOf(to);
  };
  input.addEventListener("input", () => {
    settings[name] = kind === "choice" ? values[input.selectedIndex] : kind === "yes" ? input.checked : values[input.value];
    if (kind === "range") moved = each;
    tell(); ask();
  });
  tell(); row.append(input, told);
  return [row, put];
}

const puts = {};
for (const each of lab.controls) {
  const [row, put] = control(each);
  at("controls").append(row); puts[each.name] = put;
}
for (const [text, body] of Object.entries(lab.made)) made[text] = () => unpack(body);

function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const { name, values, value } of lab.controls) {
    const found = values.find((each) => String(each) === asked.get(name) || each === Number(asked.get(name) ?? NaN));
    puts[name](found === undefined ? value : found);
  }
}

document.body.classList.toggle("btl-embedded", self !== top);
document.body.classList.toggle("btl-front", Boolean(lab.alone));
at("controls").addEventListener("submit", (event) => event.preventDefault());
render({ model, el: at("play") });
fromAddress();
addEventListener("hashchange", () => { fromAddress(); ask(); });
if (lab.python) {
  worker = new Worker("worker.js", { type: "module", name: lab.name });
  worker.onmessage = heard;
}
if (key(changed()) !== "[]") made["[]"]().then((first) => { show(JSON.parse(first), {}); ask(); }); else ask();
if (lab.plays) setTimeout(() => at("play").querySelector("[title^='play']").click(), 400);
if ("serviceWorker" in navigator && location.protocol !== "file:") navigator.serviceWorker.register("offline.js").catch(() => {});
