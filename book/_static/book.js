// Two repairs of the widget manager, sliders that say their name and their value, and equations in labels; and one of
// the theme, which prints black titles on a dark page.
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
