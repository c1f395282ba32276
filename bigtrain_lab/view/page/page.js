/* The page's half of the player: what the kernel is to the widget. It unpacks the traces, hands the player one at a time,
 * and changes clocks by tabs. Joined behind the player and stand_in.js by page/__init__.py, so their names are known here.
 */

const told = JSON.parse(document.getElementById("btl-run").textContent);
const place = document.getElementById("btl-play"), tabs = [...document.querySelectorAll("[role=tab]")];

function choose(model, bodies, clock) {
  for (const tab of tabs) {
    const on = tab.dataset.clock === clock;
    tab.setAttribute("aria-selected", on); tab.tabIndex = on ? 0 : -1;
    if (on) place.setAttribute("aria-label", spoken(`the run, ${clock}: ${CLOCKS[clock]}`));
  }
  model.set("data", new TextEncoder().encode(`{"clock":"${clock}",${bodies[told.clocks[clock]]}`));
}

function press(player, key) { return player.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true })); }

async function start() {
  const bodies = await Promise.all(told.bodies.map(unpack));
  const model = standIn({ data: null, note: "", live: false, look: told.look, limit_bytes: told.limit, height: null });
  render({ model, el: place });
  const pick = (tab) => { choose(model, bodies, tab.dataset.clock); tab.focus(); };
  tabs.forEach((tab, i) => {
    tab.title = spoken(CLOCKS[tab.dataset.clock]);
    tab.addEventListener("click", () => pick(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (by) pick(tabs[(i + by + tabs.length) % tabs.length]);
    });
  });
  choose(model, bodies, told.first);
  document.addEventListener("keydown", (event) => {  // the player's keys work wherever nothing else has the focus
    if (event.target !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
    if (tabs[event.key - 1]) return choose(model, bodies, tabs[event.key - 1].dataset.clock);
    if (!press(place.querySelector(".btl-player"), event.key)) event.preventDefault();
  });
}

start().catch((error) => {
  place.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old to unpack the run: open the page in one of 2023 or later." : `The run cannot be shown: ${error}`;
});
