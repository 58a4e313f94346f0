// The search page. SEARCHED holds an entry [kind, address, title, page, text] for each page, section, row and function.
(() => {
  "use strict";

  // A chapter that speaks of a word comes before the page of a function that bears it.
  const WEIGHTS = { chapter: 3, page: 2, section: 2, equation: 1.5, function: 0.8, claim: 0.8, erratum: 0.7, api: 0.7 };
  const NAMES = { equation: "Equation", claim: "Claim", erratum: "Erratum", function: "Function", api: "Reference" };
  const MOST = 50;
  const AROUND = 110;

  const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const words = (text) => fold(text).match(/[\p{L}\p{N}]+(?:\+\+)?/gu) || []; // C++ is not C
  // K-FAC is a word, the same as KFAC. Where it is looked for, it is two words as well.
  const joined = (text) => words(text.replace(/(?<=[\p{L}\p{N}])[-‑](?=[\p{L}\p{N}])/gu, ""));
  const compounds = (text) => joined((text.match(/[\p{L}\p{N}]+(?:[-‑][\p{L}\p{N}]+)+/gu) || []).join(" "));

  const entries = SEARCHED.map(([kind, address, title, page, text]) => {
    const own = kind === "chapter" || kind === "page" ? address.split("/").pop().replace(/\.html.*/, "") : "";
    const name = kind === "equation" && /^\d/.test(title) ? `Eq. ${title}` : title;
    const head = `${name} ${own}`;
    return {
      kind, address, title: name, page, text,
      heads: [...new Set([...words(head), ...compounds(head)])], body: words(text), whole: compounds(text),
      headline: [...new Set(joined(head))].join(" "),
    };
  });

  // All names of an equation are one.
  const usual = (query) => query.replace(/^\s*(?:eqn?s?\b\.?|equations?\b)\s*\(?(\d{1,2})\)?\s*$/i, "Eq. $1");
  const asEquation = (query) => query.match(/^(?:Eq\. )?\(?(\d{1,2})\)?$/)?.[1];

  // How well one word of the question fits an entry: whole words count more than beginnings, titles more than text.
  const fit = (term, { heads, body, whole }) => {
    const begins = (word) => term.length > 2 && word.startsWith(term);
    const head = heads.includes(term) ? 10 : heads.some(begins) ? 7 : 0;
    let times = whole.filter((word) => word === term).length;
    for (const word of body) times += word === term ? 1 : begins(word) ? 0.5 : 0;
    return head + 2 * Math.log2(1 + times);
  };

  const score = (query) => {
    const terms = [...new Set(joined(query))];
    const phrase = joined(query).join(" ");
    const number = asEquation(query);
    const name = /[_.(]/.test(query) && fold(query).replace(/\(.*/, "").trim().split(".").pop();
    return (entry) => {
      if (number && entry.kind === "equation" && entry.title === `Eq. ${number}`) return 1000;
      const fits = terms.map((term) => fit(term, entry));
      if (fits.some((value) => value === 0)) return 0;
      const { headline } = entry;
      const titled = entry.kind === "function" ? 0 : headline === phrase ? 20 : ` ${headline} `.includes(` ${phrase} `) ? 10 : 0;
      const said = terms.length > 1 && joined(entry.text).join(" ").includes(phrase) ? 4 : 0;
      const named = entry.kind === "function" && fold(entry.title).split(".").pop() === name ? 100 : 0;
      return WEIGHTS[entry.kind] * (fits.reduce((sum, value) => sum + value, 0) / terms.length + titled + said) + named;
    };
  };

  const find = (query) => {
    const rate = score(query);
    return entries
      .map((entry) => ({ entry, value: rate(entry) }))
      .filter(({ value }) => value > 0)
      .sort((a, b) => b.value - a.value)
      .map(({ entry }) => entry);
  };

  // How many letters differ, are missing or are too many.
  const distance = (one, two) => {
    let row = Array.from({ length: two.length + 1 }, (_, k) => k);
    for (let i = 1; i <= one.length; i++) {
      const above = row;
      row = [i];
      for (let k = 1; k <= two.length; k++)
        row[k] = Math.min(above[k] + 1, row[k - 1] + 1, above[k - 1] + (one[i - 1] === two[k - 1] ? 0 : 1));
    }
    return row[two.length];
  };
  // The question with each word that the book does not have replaced by the nearest that it has, the most frequent first.
  const corrected = (query) => {
    const counts = new Map();
    for (const { heads, body, whole } of entries) for (const word of [...heads, ...body, ...whole]) counts.set(word, (counts.get(word) || 0) + 1);
    const known = [...counts].sort((a, b) => b[1] - a[1]).map(([word]) => word);
    const near = (term) => {
      if (known.some((word) => word === term || (term.length > 2 && word.startsWith(term)))) return term;
      let [best, least] = [term, Math.min(2, Math.floor(term.length / 3)) + 1];
      for (const word of known) {
        if (Math.abs(word.length - term.length) >= least) continue;
        const d = distance(term, word);
        if (d < least) [best, least] = [word, d];
      }
      return best;
    };
    return joined(query).map(near).join(" ");
  };

  // The text around the first word that was asked for, with all such words marked.
  const excerpt = (text, query) => {
    const terms = joined(query).map((term) => [...term.replace(/[^\p{L}\p{N}]/gu, "")].join("[-‑]?"));
    const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${terms.join("|")})[\\p{L}\\p{N}]*`, "giu");
    const first = Math.max(0, (text.search(pattern) || 0) - AROUND);
    const start = first ? text.indexOf(" ", first) + 1 : 0;
    const part = text.slice(start, start + 2 * AROUND);
    const line = document.createElement("p");
    let end = 0;
    for (const match of part.matchAll(pattern)) {
      const mark = document.createElement("mark");
      mark.textContent = match[0];
      line.append(part.slice(end, match.index), mark);
      end = match.index + match[0].length;
    }
    line.prepend(start ? "… " : "");
    line.append(part.slice(end), start + 2 * AROUND < text.length ? " …" : "");
    return line;
  };

  const item = (entry, query) => {
    const line = document.createElement("li");
    const link = Object.assign(document.createElement("a"), { href: entry.address, textContent: entry.title });
    const from = document.createElement("span");
    const kind = NAMES[entry.kind];
    from.textContent = [kind, entry.page === entry.title ? "" : entry.page].filter(Boolean).join(", ");
    line.append(link, " ", from, entry.text ? excerpt(entry.text, query) : "");
    return line;
  };

  const show = (typed) => {
    const asked = usual(typed.trim());
    const exact = words(asked).length ? find(asked) : [];
    const query = exact.length ? asked : corrected(asked);
    const found = exact.length || !words(asked).length ? exact : find(query);
    const list = document.querySelector(".book-search ol");
    list.replaceChildren(...found.slice(0, MOST).map((entry) => item(entry, query)));
    const some = found.length > MOST ? `, the first ${MOST} of them here` : "";
    const other = found.length > exact.length ? `Nothing for “${asked}”; shown is “${query}”: ` : "";
    const many = found.length === 1 ? "1 place" : `${found.length || "No"} places${some}`;
    document.querySelector(".book-search [role=status]").textContent = asked && other + many;
  };

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.querySelector(".book-search form");
    form.hidden = false; // without this script it would do nothing
    const field = form.elements.q;
    field.value = new URLSearchParams(location.search).get("q") || "";
    show(field.value);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      history.replaceState(null, "", `${location.pathname}?${new URLSearchParams({ q: field.value })}`);
      show(field.value);
    });
  });
})();
