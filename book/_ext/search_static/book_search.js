// The search page. SEARCHED holds an entry [kind, address, title, page, text] for each page, section, row and function.
(() => {
  "use strict";

  // A chapter that speaks of a word comes before the page of a function that bears it.
  const WEIGHTS = { chapter: 3, page: 2, section: 2, equation: 1.5, function: 0.8, claim: 0.8, erratum: 0.7, api: 0.7 };
  const NAMES = { equation: "Equation", claim: "Claim", erratum: "Erratum", function: "Function", api: "Reference" };
  const MOST = 50;
  const AROUND = 110;

  const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const words = (text) => fold(text).match(/[\p{L}\p{N}]+/gu) || [];

  const entries = SEARCHED.map(([kind, address, title, page, text]) => {
    const own = kind === "chapter" || kind === "page" ? address.split("/").pop().replace(/\.html.*/, "") : "";
    const name = kind === "equation" && /^\d/.test(title) ? `Eq. ${title}` : title;
    return { kind, address, title: name, page, text, heads: [...new Set(words(`${name} ${own}`))], body: words(text) };
  });

  const asEquation = (query) => fold(query).match(/^(?:eqs?\.?|equations?)?\s*\(?(\d{1,2})\)?$/)?.[1];

  // How well one word of the question fits an entry: whole words count more than beginnings, titles more than text.
  const fit = (term, { heads, body }) => {
    const begins = (word) => term.length > 2 && word.startsWith(term);
    const head = heads.includes(term) ? 10 : heads.some(begins) ? 7 : 0;
    let times = 0;
    for (const word of body) times += word === term ? 1 : begins(word) ? 0.5 : 0;
    return head + 2 * Math.log2(1 + times);
  };

  const score = (query) => {
    const terms = [...new Set(words(query))];
    const phrase = words(query).join(" ");
    const number = asEquation(query);
    return (entry) => {
      if (number && entry.kind === "equation" && entry.title === `Eq. ${number}`) return 1000;
      const fits = terms.map((term) => fit(term, entry));
      if (fits.some((value) => value === 0)) return 0;
      const head = entry.heads.join(" ");
      const whole = entry.kind === "function" ? 0 : head === phrase ? 20 : ` ${head} `.includes(` ${phrase} `) ? 10 : 0;
      const said = terms.length > 1 && entry.body.join(" ").includes(phrase) ? 4 : 0;
      const named = entry.kind === "function" && /[_.]/.test(query) && fold(entry.title).split(".").pop() === fold(query) ? 100 : 0;
      return WEIGHTS[entry.kind] * (fits.reduce((sum, value) => sum + value, 0) / terms.length + whole + said) + named;
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

  // The text around the first word that was asked for, with all such words marked.
  const excerpt = (text, query) => {
    const terms = words(query).map((term) => term.replace(/[^\p{L}\p{N}]/gu, ""));
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

  const show = (query) => {
    const found = words(query).length ? find(query) : [];
    const list = document.querySelector(".book-search ol");
    list.replaceChildren(...found.slice(0, MOST).map((entry) => item(entry, query)));
    const some = found.length > MOST ? `, the first ${MOST} of them here` : "";
    document.querySelector(".book-search [role=status]").textContent = !query.trim()
      ? ""
      : found.length === 1
        ? "1 place"
        : `${found.length || "No"} places${some}`;
  };

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.querySelector(".book-search form");
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
