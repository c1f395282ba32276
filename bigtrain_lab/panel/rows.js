/* A table that comes as HTML: a click on a row, or Enter, sends its number, and what of it where a cell says so; what cannot be undone
 * asks for a second press. A click on a heading sorts, and the next table too. */
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  root.className = "btl-rows";
  let by = "";
  const sort = () => {
    const body = root.querySelector("tbody"), value = (tr) => Number(tr.dataset[by] ?? Infinity);
    if (by && body) body.append(...[...body.rows].sort((a, b) => value(a) - value(b)));
  };
  const draw = () => {
    const held = root.contains(document.activeElement) ? document.activeElement.dataset : {};
    root.innerHTML = model.get("html");
    sort();
    const again = held.row ? `[data-row="${held.row}"]` : held.by ? `[data-by="${held.by}"]` : null;  // who presses Enter goes on from there
    if (again) root.querySelector(again)?.focus();
  };
  const take = (event) => {
    const row = event.target.closest("[data-row]"), cell = event.target.closest("[data-do]"), head = event.target.closest("th[data-by]");
    if (cell?.dataset.sure) { cell.textContent = cell.dataset.sure; delete cell.dataset.sure; }
    else if (row) model.send({ row: Number(row.dataset.row), do: cell?.dataset.do ?? "" });
    if (head) { by = head.dataset.by; sort(); }
  };
  root.addEventListener("click", take);
  root.addEventListener("keydown", (event) => { if (event.key === "Enter") take(event); });
  const wait = () => root.classList.toggle("btl-waiting", model.get("waiting"));
  model.on("change:html", draw); model.on("change:waiting", wait); draw(); wait(); model.send({ seen: true });
}
export default { render };
