/* The list of what a rank held at its peak: by kind, and storage by storage where the run kept a ledger.
 *
 * Plain HTML below the canvas, so that it is read, copied and reached by keyboard; a rank's marker in the memory chart,
 * the label left of it, the button "peak" and the key p open it, Escape and its own button close it.
 */

function peakList(d, v, act) {
  const list = d.root.appendChild(element("section", "btl-peak", "", { "aria-label": "what a rank holds at its peak" }));
  v.listed = null;
  list.hidden = true;

  const chip = (kind) => { const mark = element("i", "", ""); mark.style.background = v.look.memory[kind][1]; return mark; };
  const cells = (row, tag, texts) => row.append(...texts.map((text) => element(tag, "", text)));

  function head(rank, { bytes, where, count }) {
    const top = element("div", "btl-peak-head", ""), title = element("b", "", `Peak of ${v.scene.names[rank]}: ${size(bytes)} ${where}`);
    if (count) title.append(spoken(`: ${plural(count, "storage")}`));
    top.append(title);
    const button = (text, title, press) => {
      const made = top.appendChild(element("button", "", text, { type: "button", title, "aria-label": title }));
      made.onclick = press;
      return made;
    };
    if (v.scene.ranks > 1) { button("‹", "the rank before", () => turn(-1)); button("›", "the next rank", () => turn(1)); }
    list.shut = button("×", "close (Escape)", () => api.close());
    return top;
  }

  /** One bar for the whole, and a number for each kind. */
  function byKind({ bytes, kinds }) {
    const bar = element("div", "btl-peak-bar", ""), told = element("div", "btl-peak-kinds", "");
    for (const [kind, held] of kinds) {
      const part = bar.appendChild(chip(kind)), item = told.appendChild(element("span", "btl-key", ""));
      part.style.flexGrow = held / bytes;
      item.append(chip(kind), `${v.look.memory[kind][0]} ${size(held)}`);
    }
    return [bar, told];
  }

  function table({ bytes, count, rows }) {
    const made = element("table", "", ""), top = made.createTHead().insertRow(), body = made.createTBody();
    const columns = ["kind", "bytes", "what", "module", "shape", "made in"];
    const texts = rows.map(([kind, held, name, shape, dtype, module, action]) =>
      [v.look.memory[kind][0], size(held), name, module, dtype && `${shape.join(" × ") || "scalar"} ${dtype}`, action]);
    const told = columns.map((_, i) => texts.some((row) => row[i]));  // a column that says something
    cells(top, "th", columns.filter((_, i) => told[i]));
    for (const [n, [kind, held]] of rows.entries()) {
      const row = body.insertRow();
      cells(row, "td", texts[n].filter((_, i) => told[i]));
      row.cells[0].prepend(chip(kind)); row.cells[1].title = exactSize(held);
    }
    const rest = count - rows.length, left = bytes - rows.reduce((total, row) => total + row[1], 0);
    return rest ? [made, element("p", "", `and ${rest.toLocaleString("en")} more, ${size(left)}`)] : [made];
  }

  function without() {
    return element("p", "", v.scene.clock === "predicted" ? "A prediction counts bytes by kind; a run that keeps a ledger lists single storages here."
      : "Single storages are listed at the highest peak of a run that keeps a ledger: run(ledger=True).");
  }

  function turn(by) {
    const ranks = v.scene.peaks.flatMap((peak, rank) => peak ? [rank] : []);
    api.open(ranks[(ranks.indexOf(v.listed) + by + ranks.length) % ranks.length], true);
  }

  const api = {
    /** Show a rank's peak, and bring the playhead to it. */
    open(rank, moved = false) {
      const peak = v.scene?.peaks[rank];
      if (!peak) return api.close();
      v.listed = rank; list.hidden = false; act.frame(); d.root.dataset.peak = rank; d.peak.setAttribute("aria-pressed", true);
      list.replaceChildren(head(rank, peak), ...byKind(peak), ...(peak.rows.length ? table(peak) : [without()]));
      if (moved) { act.pause(); act.seek(peak.tick); list.shut.focus({ preventScroll: true }); list.scrollIntoView({ block: "nearest" }); }
    },
    close() {
      if (v.listed === null) return;
      if (list.contains(document.activeElement)) d.canvas.focus({ preventScroll: true });
      v.listed = null; list.hidden = true; act.frame(); delete d.root.dataset.peak; d.peak.setAttribute("aria-pressed", false);
      list.replaceChildren();
    },
    /** The highest rank's, or where a list is open no list. */
    toggle() { if (v.listed === null) api.open(highest(v.scene), true); else api.close(); },
    /** After another trace came. */
    renew() { if (v.listed !== null) api.open(v.listed); },
  };
  return api;
}

/** The rank that holds the most at its peak. */
const highest = (scene) => scene?.peaks.reduce((best, peak, rank) => (peak && !(peak.bytes <= scene.peaks[best]?.bytes) ? rank : best), 0) ?? 0;
