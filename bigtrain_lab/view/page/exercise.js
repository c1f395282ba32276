/* An exercise on a page: Python in a worker checks what stands in the editor. An answer that does not end is ended with its worker.
 */

const { name, patience_s } = JSON.parse(document.getElementById("btl-exercise").textContent), at = (id) => document.getElementById(`btl-${id}`);
const editor = at("answer"), start = editor.value, kept = `bigtrain_lab ${name}`, seed = Math.floor(Math.random() * 1e6);
let worker, limit;

function begin() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = heard;
}

function heard({ data }) {
  if (data.ready) document.body.dataset.python = "ready";
  if (data.ready && at("check").disabled) return;  // an answer is at play already
  clearTimeout(limit);
  at("check").disabled = false; at("status").textContent = "";
  if (data.ready) return;
  if (data.failed) return tell([`Python failed in this page: ${data.failed}`]);
  const { findings, printed, ladder } = JSON.parse(data.answer);
  tell([...(printed ? [`Your answer printed: ${printed}`] : []), ...(findings.length ? [...findings, ...ladder] : ["right."])], !findings.length);
}

function tell(sentences, right = false) {
  at("findings").replaceChildren(...sentences.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  at("findings").dataset.right = right;
}

function endless() {
  worker.terminate(); at("status").textContent = "Python is loading.";
  tell([`Your answer did not end within ${patience_s} s.`]); begin();
}

at("check").addEventListener("click", () => {
  at("check").disabled = true; at("status").textContent = "The answer plays."; tell([]);
  limit = setTimeout(endless, 1000 * patience_s);
  worker.postMessage({ module: "bigtrain_lab.grading.in_page", name: "checked", given: [name, editor.value, seed] });
});
at("again").addEventListener("click", () => { editor.value = start; localStorage.removeItem(kept); tell([]); });
editor.addEventListener("input", () => localStorage.setItem(kept, editor.value));
editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.shiftKey)) { event.preventDefault(); at("check").click(); }
  if (event.key === "Enter" && !event.ctrlKey && !event.shiftKey) {  // as deep as the line before
    const line = editor.value.slice(0, editor.selectionStart).split("\n").at(-1);
    event.preventDefault();
    document.execCommand("insertText", false, `\n${line.match(/^ */)[0]}${line.trimEnd().endsWith(":") ? "    " : ""}`);
  }
});
editor.value = localStorage.getItem(kept) ?? start;
begin();
