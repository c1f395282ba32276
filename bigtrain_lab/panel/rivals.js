/* A table that comes as HTML: a click on a row, or Enter, sends its number; a click on a heading sorts. */
function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  const draw = () => { root.innerHTML = model.get("html"); root.classList.toggle("btl-waiting", model.get("waiting")); };
  const take = (event) => {
    const row = event.target.closest("[data-row]"), head = event.target.closest("th[data-by]");
    if (row) model.send({ row: Number(row.dataset.row) });
    if (!head) return;
    const body = root.querySelector("tbody"), by = (tr) => Number(tr.dataset[head.dataset.by] ?? Infinity);
    body.append(...[...body.rows].sort((a, b) => by(a) - by(b)));
  };
  root.addEventListener("click", take);
  root.addEventListener("keydown", (event) => { if (event.key === "Enter") take(event); });
  model.on("change:html", draw); model.on("change:waiting", draw); draw(); model.send({ seen: true });
}
export default { render };
