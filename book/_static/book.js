// Repairs of the widget manager (sliders that say their name and their value, equations in labels) and of the theme
// (names of its buttons, dark paper); what scrolls takes the keyboard focus; one button for all folded parts.
(() => {
  "use strict";

  // The widget manager speaks to MathJax 2. Answer with MathJax 3.
  let typeset = Promise.resolve();
  document.addEventListener("readystatechange", () => {
    if (document.readyState === "complete" && window.MathJax && !window.MathJax.Hub) {
      const queue = ([, , element]) => {
        typeset = typeset
          .then(() => window.MathJax.startup.promise)
          .then(() => window.MathJax.typesetPromise([element]));
      };
      window.MathJax.Hub = { Queue: queue };
    }
  });

  // A slider's handle carries no name, and says the position instead of the label that is shown beside it.
  const set = (node, name, value) => {
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  };

  const describe = (slider) => {
    const handle = slider.querySelector('[role="slider"]');
    const label = slider.querySelector(".widget-label");
    const readout = slider.querySelector(".widget-readout");
    if (!handle || !label || !readout) return;
    if (label.title === "null") label.removeAttribute("title");
    set(handle, "aria-label", label.textContent.trim());
    set(handle, "aria-valuetext", readout.textContent.trim());
    if (readout.isContentEditable && slider.closest(".nc-explore")) {
      readout.removeAttribute("contenteditable"); // typing there is ignored: the values are a list
    }
  };

  const update = (records) => {
    const sliders = new Set();
    for (const { target, addedNodes } of records) {
      const element = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
      const slider = element && element.closest(".widget-slider");
      if (slider) sliders.add(slider);
      for (const node of addedNodes) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue;
        if (node.matches(".widget-slider")) sliders.add(node);
        node.querySelectorAll(".widget-slider").forEach((found) => sliders.add(found));
      }
    }
    sliders.forEach(describe);
  };

  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(update).observe(document.body, {
      attributeFilter: ["aria-valuetext", "aria-valuenow"],
      attributes: true,
      characterData: true,
      childList: true,
      subtree: true,
    });
  });

  // What a screen reader hears: the words that stand there, names where there are only pictures, and landmarks.
  const name = () => {
    document.querySelectorAll("summary[aria-label]").forEach((node) => node.removeAttribute("aria-label"));
    document.querySelectorAll(".search-button-field").forEach((node) => node.removeAttribute("aria-label"));
    document.querySelectorAll(".theme-switch[title]").forEach((node) => node.removeAttribute("title"));
    document.querySelectorAll(".toctree-l1 > details > summary").forEach((node) => {
      node.setAttribute("aria-label", `Pages of ${node.closest("li").querySelector("a").textContent.trim()}`);
    });
    document.querySelectorAll(".sidebar-primary-items__start").forEach((node) => {
      node.setAttribute("role", "region");
      node.setAttribute("aria-label", "Book");
    });
    document.querySelectorAll("thead th").forEach((node) => {
      if (!node.textContent.trim() && !node.firstElementChild?.childElementCount) {
        const cell = document.createElement("td");
        cell.className = node.className;
        node.replaceWith(cell);
      }
    });
  };

  // Wide equations, tables and code scroll by themselves: with the arrow keys, too.
  const SCROLLING = [
    "mjx-container",
    ".cell_output .text_html > div",
    ".pst-scrollable-table-container",
    "table.table",
    ".nc-table",
    "pre",
  ].join(", ");
  const reach = (node) => {
    const wide = node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX !== "visible";
    if (wide) set(node, "tabindex", "0");
    else if (node.getAttribute("tabindex") === "0" && !node.matches("pre")) node.removeAttribute("tabindex");
  };
  const watched = new WeakSet();
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)));
  const watch = () => {
    for (const node of document.querySelectorAll(SCROLLING)) {
      if (watched.has(node)) continue;
      watched.add(node);
      sizes.observe(node);
    }
  };

  // Folded parts open and close together, for reading through and for paper, which shows what is open. The button stands
  // before the first section: above it a chapter has its figure, which belongs on the first screen.
  const fold = () => {
    const parts = [...document.querySelectorAll(".bd-article details")];
    const title = document.querySelector(".bd-article h1");
    if (parts.length < 3 || !title) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "nc-fold";
    const say = () => {
      button.textContent = parts.every((part) => part.open) ? "Close the folded parts" : "Open the folded parts";
    };
    button.addEventListener("click", () => {
      const open = !parts.every((part) => part.open);
      parts.forEach((part) => (part.open = open));
    });
    parts.forEach((part) => part.addEventListener("toggle", say));
    say();
    const section = document.querySelector(".bd-article section section");
    if (section) section.before(button);
    else title.after(button);
  };

  document.addEventListener("readystatechange", () => {
    if (document.readyState === "interactive") {
      name();
      fold();
    } else if (window.MathJax?.startup) {
      window.MathJax.startup.promise.then(watch);
    } else {
      watch();
    }
  });

  // Paper is light.
  let theme = null;
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.dataset.theme = theme;
  });
})();
