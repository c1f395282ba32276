/* A lesson as a page. Where its notebook asks what the reader predicts, the page asks too, and shows what follows once that is typed. What is typed stays in
 * this browser; nobody marks it. Without scripts, and for who came by a link to a cell below a question, all is shown.
 */

const WORDS = {
  en: { lock: "Lock and read on", skip: "Read this lesson without predicting", again: "Forget my predictions", above: "what stands above", toc: "In this lesson" },
  zh: { lock: "锁定并继续阅读", skip: "不做预测，直接阅读本课", again: "清除我的预测", above: "上面所填的内容", toc: "本课内容" },
}[document.documentElement.lang];
const kept = `bigtrain_lab lesson ${location.pathname.split("/").at(-1).split(".")[0]}`;  // of all languages
const said = JSON.parse(localStorage.getItem(kept) ?? '{"answers":{}}'), cells = [...document.querySelectorAll("main > .cell")];
const linked = document.getElementById(decodeURIComponent(location.hash.slice(1)));

function keep() { localStorage.setItem(kept, JSON.stringify(said)); show(); }

function made(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/* The questions of a cell that does nothing but ask. */
function questions(cell) {
  const asks = /(^|[^.\w])predict\(/.test(cell.querySelector(".input_area")?.textContent ?? "");
  const lines = [...cell.querySelectorAll(".output_text pre")].flatMap((each) => each.textContent.trimEnd().split("\n"));
  return asks && lines.length && lines.every((line) => /[:?]$/.test(line)) ? lines : [];
}

/* The form of these questions in the place of the cell; `own`: the cells from here to the next question. */
function ask(cell, lines, own) {
  const fields = lines.map((line) => made("input", { autocomplete: "off", ariaLabel: line }));
  const form = made("form", { className: "btl-asks" }, ...lines.map((line, at) => made("label", {}, line, fields[at])), made("button", { textContent: WORDS.lock }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    said.answers[cell.id] = fields.map((field) => field.value.trim());
    keep();
  });
  cell.querySelector(".output_wrapper").replaceWith(form);
  cell.querySelector(".input").remove();
  const told = own.flatMap((each) => [...each.querySelectorAll(".output_text pre")]).map((element) => ({ element, text: element.textContent }))
    .filter(({ text }) => /you said nothing/i.test(text));
  return { cell, form, fields, told };
}

const asked = [];
cells.forEach((cell, at) => {
  const lines = questions(cell);
  if (!lines.length) return;
  const after = cells.slice(at + 1), next = after.findIndex((each) => questions(each).length);
  asked.push(ask(cell, lines, next < 0 ? after : after.slice(0, next)));
});
const skip = made("button", { className: "btl-skip", type: "button", textContent: WORDS.skip });
skip.addEventListener("click", () => { said.read = true; keep(); });
const again = made("button", { className: "btl-skip", type: "button", textContent: WORDS.again });
again.addEventListener("click", () => { said.answers = {}; said.read = false; keep(); scrollTo(0, 0); });
const headings = [...document.querySelectorAll("main h2")].map((heading) => ({ heading, link: made("a", { href: `#${heading.id}`, textContent: heading.textContent.replace("¶", "") }) }));
document.querySelector("main").before(made("aside", {}, made("b", { textContent: WORDS.toc }), ...headings.map(({ link }) => link)));
document.querySelector("main").append(again);

function show() {
  const first = said.read ? undefined : asked.find(({ cell }) => !said.answers[cell.id]), at = first && cells.indexOf(first.cell);
  const open = cells.indexOf(linked?.closest(".cell")) > at ? undefined : first, last = open ? at : cells.length;
  cells.forEach((cell, at) => { cell.hidden = at > last; });
  for (const { cell, form, fields, told } of asked) {
    const answers = said.answers[cell.id];
    form.dataset.locked = Boolean(answers);
    fields.forEach((field, at) => { field.readOnly = Boolean(answers); if (answers) field.value = answers[at] ?? ""; });
    const words = answers?.some(Boolean) ? (answers.length === 1 ? answers[0] : WORDS.above) : "nothing";
    for (const { element, text } of told) element.textContent = text.replace(/(you said) nothing/gi, (_, you) => `${you} ${words}`);
  }
  skip.remove(); if (open) open.form.append(skip);
  again.hidden = !Object.keys(said.answers).length && !said.read;
  for (const { heading, link } of headings) link.toggleAttribute("data-ahead", Boolean(heading.closest("[hidden]")));
}
show();
linked?.scrollIntoView();
