// The rows of a ledger's page by paper, verdict, stability and words. Without this script all rows stand there.
(() => {
  "use strict";

  const STABILITIES = {
    firm: "no small move turns it over",
    turned: "a small move turns it over",
    exact: "settled by an exact test",
    open: "not tested",
  };

  const stability = (text) =>
    /Turned over by:/.test(text) ? "turned" : /Firm\s*$/.test(text) ? "firm" : /Exact test\s*$/.test(text) ? "exact" : "open";

  const read = (table) => {
    const section = table.closest("section");
    return [...table.tBodies[0].rows].map((row) => ({
      row,
      paper: section.id,
      kind: row.querySelector(".ledger-badge").textContent.trim(),
      stability: table.classList.contains("ledger-claims") ? stability(row.cells[2].textContent) : null,
      words: `${row.id} ${row.textContent}`.toLowerCase(),
    }));
  };

  const plain = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const option = (value, text) => new Option(text, value);

  const choice = (name, label, values) => {
    const line = document.createElement("label");
    const select = document.createElement("select");
    select.name = name;
    select.append(option("", "all"), ...values.map(([value, text]) => option(value, text)));
    line.append(label, " ", select);
    return line;
  };

  const start = () => {
    const tables = [...document.querySelectorAll("table.ledger-table")];
    if (!tables.length) return;
    const entries = tables.flatMap(read);
    const kinds = [...new Set(entries.map(({ kind }) => kind))];
    const papers = tables.map((table) => table.closest("section")).map((section) => [
      section.id,
      section.querySelector("h2").firstChild.textContent,
    ]);
    const column = tables[0].tHead.rows[0].cells[tables[0].classList.contains("ledger-errata") ? 3 : 2];

    const form = document.createElement("form");
    form.className = "ledger-filter";
    form.setAttribute("role", "search");
    form.setAttribute("aria-label", "Rows of this page");
    form.append(choice("paper", "Paper", papers));
    form.append(choice("kind", column.textContent.split(" ")[0], kinds.map((kind) => [kind, kind])));
    if (entries[0].stability) form.append(choice("stability", "Stability", Object.entries(STABILITIES)));
    const words = document.createElement("label");
    const input = Object.assign(document.createElement("input"), { type: "search", name: "words", autocomplete: "off" });
    words.append("Words ", input);
    const reset = Object.assign(document.createElement("button"), { type: "reset", textContent: "All rows" });
    const count = document.createElement("output");
    count.setAttribute("role", "status");
    form.append(words, reset, count);
    tables[0].closest("section").before(form);

    const state = () => [...new FormData(form)].filter(([, value]) => value.trim());

    const show = () => {
      const asked = Object.fromEntries(state());
      const terms = (asked.words || "").toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const entry of entries) {
        const wanted =
          ["paper", "kind", "stability"].every((key) => !asked[key] || entry[key] === asked[key]) &&
          terms.every((term) => entry.words.includes(term));
        entry.row.hidden = !wanted;
        shown += wanted;
      }
      for (const table of tables) {
        table.closest("section").hidden = [...table.tBodies[0].rows].every((row) => row.hidden);
      }
      count.textContent = `${shown} of ${entries.length} rows`;
    };

    const keep = (hash) => {
      const query = new URLSearchParams(state()).toString();
      history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${hash}`);
    };

    // A row that a link names is shown, whatever the filter says.
    const reveal = () => {
      const target = document.getElementById(plain(location.hash.slice(1)));
      if (!target) return;
      if (target.hidden || target.closest("section[hidden]")) {
        for (const field of form.elements) if (field.name) field.value = "";
        show();
        keep(location.hash);
      }
      target.scrollIntoView();
    };

    const ask = () => {
      const asked = new URLSearchParams(location.search);
      for (const field of form.querySelectorAll("[name]")) {
        field.value = asked.get(field.name) ?? "";
        if (field.selectedIndex === -1) field.value = "";
      }
      show();
    };
    form.addEventListener("input", () => (show(), keep("")));
    form.addEventListener("reset", () => setTimeout(() => (show(), keep(""))));
    form.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("popstate", ask);
    window.addEventListener("hashchange", reveal);
    ask();
    if (location.hash) reveal();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
