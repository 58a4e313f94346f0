// What the figures of the book share: elements, controls, points to drag, a clock, a link that carries the state, words
// for those who listen, and labels that step aside. A figure registers itself with NC.figure(name, draw).
(() => {
  "use strict";
  const NC = (window.NC = window.NC || {});
  const SVG = "http://www.w3.org/2000/svg";
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const figures = {};

  const fill = (node, attributes, children) => {
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") node[key] = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  NC.html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  NC.svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  // What stays as it is costs the browser nothing: no style, no layout, no painting.
  NC.set = (node, attributes) => {
    for (const [key, value] of Object.entries(attributes)) {
      if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
    }
    return node;
  };
  NC.write = (node, words) => {
    if (node.textContent !== String(words)) node.textContent = words;
  };
  NC.front = (parent, ...nodes) => {
    const last = [...parent.childNodes].slice(-nodes.length);
    if (nodes.some((node, k) => node !== last[k])) parent.append(...nodes);
  };
  // Between the ends, a point that lies on the one before is left out.
  NC.line = (points) => {
    let [path, a, b] = ["", NaN, NaN];
    points.forEach(([x, y], k) => {
      if (k < points.length - 1 && Math.abs(x - a) < 0.05 && Math.abs(y - b) < 0.05) return;
      path += `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      [a, b] = [x, y];
    });
    return path;
  };
  NC.dots = (points) => points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h.01`).join("");

  // Parts of a drawing.
  NC.picture = (name, width = 340, height = 340) =>
    NC.svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": name });
  NC.box = (drawing, id, { left, right, top, bottom }) => {
    const frame = { x: left, y: top, width: right - left, height: bottom - top };
    drawing.append(NC.svg("defs", {}, NC.svg("clipPath", { id }, NC.svg("rect", frame))));
    drawing.append(NC.svg("rect", { ...frame, class: "nc-ground" }));
    return NC.svg("g", { "clip-path": `url(#${id})` });
  };
  NC.text = (drawing, x, y, words, anchor = "start", kind = "") => {
    const node = NC.svg("text", { x, y, "text-anchor": anchor, class: kind }, words);
    drawing.append(node);
    return node;
  };
  NC.star = (drawing, [x, y]) => {
    const d = "M0-8 2-2.6 7.6-2.5 3.1 1 4.7 6.5 0 3.2-4.7 6.5-3.1 1-7.6-2.5-2-2.6Z";
    const node = NC.svg("path", { class: "nc-goal", d, transform: `translate(${x} ${y})` });
    drawing.append(node);
    return node;
  };
  NC.label = (node, words, spot) => {
    const place = spot ? { x: spot[0].toFixed(1), y: spot[1].toFixed(1) } : {};
    NC.set(node, { visibility: spot ? "visible" : "hidden", ...place });
    NC.write(node, words);
  };
  // An axis of the steps 0..length, on which early steps have more room: a step to pixels, and back.
  NC.steps = ({ left, right }, length) => ({
    across: (k) => left + (Math.log1p(k) / Math.log1p(length)) * (right - left),
    at: (x) => Math.round(Math.expm1((Math.log1p(length) * (x - left)) / (right - left))),
  });
  // A part of a chart with a line, a dot and a name for each method; free: room for a handle at its foot.
  NC.part = (drawing, id, { left, right, top, bottom, least, most, log }, methods, free = 3) => {
    const box = NC.box(drawing, id, { left, right, top, bottom });
    drawing.append(box);
    const each = (kind) => methods.map(({ name }) => {
      const node = NC.svg("path", { class: `nc-${kind} nc-${name}` });
      box.append(node);
      return node;
    });
    const [lines, dots] = [each("line"), each("now")];
    const names = methods.map(({ name }) => NC.text(drawing, 0, 0, "", "start", `nc-label nc-${name}`));
    const place = NC.labels([left + 4, top + 3, right - 2, bottom - free], 0.9);
    return {
      box, top, bottom, lines, dots,
      down: (y) => top + ((most - (log ? Math.log10(y) : y)) / (most - least)) * (bottom - top),
      // Put the names of the curves, the most important first; return the places of those that come after.
      name(order, curves, extra = []) {
        const spots = place([...order.map((m) => curves[m]), ...extra]);
        order.forEach((m, k) => NC.label(names[m], curves[m].text, spots[k]));
        return spots.slice(order.length);
      },
    };
  };
  // The way that a key goes, up or down; 0 for other keys and for those of the browser.
  const WAYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
  const wayOf = (event) => (event.altKey || event.ctrlKey || event.metaKey ? 0 : WAYS[event.key] ?? 0);
  // A handle that moves the clock along an axis of the steps 0..length: a slider. Its put() takes the step, too.
  NC.scrub = (drawing, at, length, clock, unit = "step") => {
    const name = unit[0].toUpperCase() + unit.slice(1);
    const label = `${name}: drag it, or press arrow keys`;
    const { node, put } = NC.handle(drawing, { label, move: (x) => clock().put(at(x), true) });
    node.removeAttribute("aria-roledescription");
    NC.set(node, { role: "slider", "aria-valuemin": 0, "aria-valuemax": length });
    node.onkeydown = (event) => {
      const way = wayOf(event);
      if (!way) return;
      event.preventDefault();
      clock().put(clock().now + way * (event.shiftKey && Math.abs(way) === 1 ? 10 : 1), true);
    };
    return {
      put(n, x, y) {
        put(x, y);
        NC.set(node, { "aria-valuenow": n, "aria-valuetext": `${unit} ${n}` });
      },
    };
  };
  // Where the values of a square grid (rows of n) cross a level, as a path; at(column, row) gives pixels.
  NC.contour = (values, n, level, at) => {
    const corners = [[0, 0], [1, 0], [1, 1], [0, 1]];
    let path = "";
    for (let row = 0; row < n - 1; row++)
      for (let column = 0; column < n - 1; column++) {
        const first = row * n + column;
        const heights = [values[first], values[first + 1], values[first + n + 1], values[first + n]];
        const below = heights[0] < level;
        if (heights[1] < level === below && heights[2] < level === below && heights[3] < level === below) continue;
        const crossings = [];
        for (let k = 0; k < 4; k++) {
          const [a, b] = [heights[k] - level, heights[(k + 1) % 4] - level];
          if (a < 0 === b < 0) continue;
          const [[x, y], [u, v], share] = [corners[k], corners[(k + 1) % 4], a / (a - b)];
          crossings.push(at(column + x + share * (u - x), row + y + share * (v - y)));
        }
        for (let k = 0; k < crossings.length; k += 2) path += NC.line(crossings.slice(k, k + 2));
      }
    return path;
  };

  // Three digits, zeros kept, a true minus; far from one as a power of ten.
  NC.number = (x) => {
    const size = Math.abs(+x.toPrecision(3));
    const text = size === 0 ? "0" : size >= 1e4 ? x.toExponential(2) : size >= 1000 ? x.toFixed(0)
      : size < 1e-4 ? x.toExponential(0) : x.toPrecision(3);
    const raised = (digits) => [...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
    const power = (_, sign, digits) => ` × 10${sign === "-" ? "⁻" : ""}${raised(digits)}`;
    return text.replace(/e([+-])(\d+)/, power).replace(/^-/, "−");
  };

  // The number that a reader typed, with a point or a comma before its fraction; NaN if it is none.
  NC.read = (typed) => {
    const text = typed.trim().replace("−", "-").replace(",", ".");
    return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN;
  };

  // The nearest value that is allowed; with zero, what is below the least counts as 0.
  NC.within = ({ low, high, zero, whole }, x) => {
    const held = zero && x < low ? 0 : Math.min(high, Math.max(low, x));
    return whole ? Math.round(held) : held;
  };

  // A slider with a number field. What changed it may be the slider, the field, or set(). Marks say what a value means.
  NC.control = ({ label, low, high, log, zero, whole, value, change }) => {
    const FREE = zero ? 0.04 : 0; // the part of the track that stands for 0
    const limits = { low, high, zero, whole };
    const at = (p) => {
      if (zero && p < FREE) return 0;
      const q = (p - FREE) / (1 - FREE);
      return log ? low * (high / low) ** q : low + q * (high - low);
    };
    const position = (x) => {
      if (zero && x < low) return 0;
      return FREE + (1 - FREE) * (log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
    };
    const rounded = (x, digits) => (whole ? Math.round(x) : +x.toPrecision(digits));
    const exact = (x) => String(rounded(x, 6));
    const nearest = (p) => rounded(at(p), 3); // what the slider gives
    // The next value that shows as another, at least a step of the track away.
    const next = (x, way, step) => {
      let p = position(x);
      do p = Math.min(1, Math.max(0, p + way * step));
      while (p > 0 && p < 1 && nearest(p) === x);
      return nearest(p);
    };
    const range = NC.html("input", { type: "range", min: 0, max: 1, step: 0.005, "aria-label": label });
    // A field of type number would drop a comma where the browser's language has a point.
    const field = NC.html("input", {
      type: "text", inputmode: whole ? "numeric" : "decimal", autocomplete: "off", role: "spinbutton",
      "aria-label": `${label}, as a number`, "aria-valuemin": zero ? 0 : low, "aria-valuemax": high,
    });
    const fits = (x) => x >= (zero ? 0 : low) && x <= high && (!whole || Number.isInteger(x));
    const judge = (sound) => NC.set(field, { "aria-invalid": !sound });
    const marks = NC.html("span", { class: "nc-marks", "aria-hidden": "true" });
    const track = NC.html("span", { class: "nc-track" }, range, marks);
    let [held, marked] = [value, ""];
    // A mark whose words run into one before it keeps its tick alone.
    const settle = () => {
      const shown = [];
      for (const { firstChild: words } of marks.children) words.hidden = false;
      for (const mark of marks.children) {
        const { left, right } = mark.getBoundingClientRect();
        mark.firstChild.hidden = shown.some(([a, b]) => left < b + 2 && right > a - 2);
        if (mark.textContent && !mark.firstChild.hidden) shown.push([left, right]);
      }
    };
    new ResizeObserver(settle).observe(track);
    const hold = (x) => {
      held = x;
      NC.set(range, { "aria-valuetext": exact(x) });
      NC.set(field, { "aria-valuenow": exact(x), "aria-valuetext": exact(x) });
    };
    const self = {
      node: NC.html("div", { class: "nc-control" }, NC.html("span", { class: "nc-name" }, label), track, field),
      set(x) {
        hold(x);
        range.value = position(x);
        field.value = exact(x);
        judge(true);
      },
      mark(list) {
        if (marked === JSON.stringify(list)) return;
        marked = JSON.stringify(list);
        marks.replaceChildren(
          ...list
            .filter(({ value: x }) => x >= (zero ? 0 : low) && x <= high)
            .map(({ value: x, text, kind }) => {
              const side = position(x) > 0.5 ? "nc-before" : "nc-after";
              return NC.html("span", { class: `nc-mark ${side} nc-${kind}`, style: `--at:${position(x)}` }, NC.html("span", {}, text));
            }),
        );
        requestAnimationFrame(settle);
      },
    };
    const take = (x) => {
      hold(x);
      change(x);
    };
    range.oninput = () => {
      const x = nearest(+range.value);
      field.value = exact(x);
      judge(true);
      take(x);
    };
    const press = (step, keys) => (event) => {
      const way = wayOf(event);
      if (Math.abs(way) !== 1 || !keys.test(event.key)) return;
      event.preventDefault();
      const x = next(held, way, step);
      self.set(x);
      take(x);
    };
    range.onkeydown = press(0.005, /Arrow/);
    field.onkeydown = press(0.01, /Up|Down/);
    field.oninput = () => {
      const given = NC.read(field.value);
      judge(fits(given));
      if (!fits(given)) return;
      const x = NC.within(limits, given);
      range.value = position(x);
      take(x);
    };
    field.onchange = () => {
      const given = NC.read(field.value);
      const x = NC.within(limits, Number.isNaN(given) ? held : given);
      self.set(x);
      take(x);
    };
    self.set(value);
    return self;
  };

  // One of a few, as a row of names.
  NC.choice = ({ label, options, value, change }) => {
    const inputs = options.map((text, k) => {
      const input = NC.html("input", { type: "radio", name: `nc-${label}`, "aria-label": text });
      input.onchange = () => change(k);
      return input;
    });
    const self = {
      node: NC.html("fieldset", { class: "nc-row" }, NC.html("legend", { class: "nc-heard" }, label),
        NC.html("span", { class: "nc-name", "aria-hidden": "true" }, label),
        ...options.map((text, k) => NC.html("label", {}, inputs[k], NC.html("span", {}, text)))),
      set(k) {
        inputs[k].checked = true;
      },
    };
    self.set(value);
    return self;
  };

  // A point of a drawing that is moved by mouse, finger and arrow keys. Pixels are those of the drawing's viewBox.
  NC.handle = (drawing, { label, move, kind = "", step = 5, reach: far = 22 }) => {
    const dot = NC.svg("circle", { r: 8, class: "nc-point" });
    const ring = NC.svg("circle", { r: 14, class: "nc-ring" });
    const reach = NC.svg("circle", { r: far, fill: "transparent" });
    const node = NC.svg("g", {
      class: `nc-handle ${kind}`, tabindex: 0, role: "button", "aria-roledescription": "point to drag", "aria-label": label,
    }, reach, ring, dot);
    drawing.append(node);
    let place = [0, 0];
    const pixels = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      return [point.x, point.y];
    };
    let grip = null;
    node.onpointerdown = (event) => {
      const [x, y] = pixels(event);
      grip = [place[0] - x, place[1] - y];
      node.setPointerCapture(event.pointerId);
      node.focus({ preventScroll: true });
      event.preventDefault();
    };
    // Else a finger that moves on scrolls the page: touch-action does not hold for a group.
    node.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    node.onpointermove = (event) => {
      if (!grip) return;
      const [x, y] = pixels(event);
      move(x + grip[0], y + grip[1]);
    };
    node.onpointerup = node.onpointercancel = () => (grip = null);
    const keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    node.onkeydown = (event) => {
      const way = wayOf(event) && keys[event.key];
      if (!way) return;
      event.preventDefault();
      const length = event.shiftKey ? step / 5 : step;
      move(place[0] + length * way[0], place[1] + length * way[1]);
    };
    return {
      node, dot,
      put(x, y) {
        place = [x, y];
        NC.set(node, { transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})` });
      },
    };
  };

  // Work for a few milliseconds and draw, so that the answer is seen in the next frame. Go on in the frames after it, with
  // more time, until work(time) says that all is done. A drag that goes on meets at most LONG and a drawing before its turn.
  const [SHORT, LONG] = [8, 20];
  NC.frames = (work, draw) => {
    let frame = null;
    const go = (time) => {
      const finished = work(time);
      draw(finished);
      return finished;
    };
    const next = () => {
      frame = requestAnimationFrame(() => go(LONG) || next());
    };
    return () => {
      cancelAnimationFrame(frame);
      // The browser moves a pointer just before a frame: that frame is for the answer alone.
      if (!go(SHORT)) frame = requestAnimationFrame(next);
    };
  };

  // A button. What its click answers, if anything, stands on it for a while.
  NC.button = (text, click) => {
    const node = NC.html("button", { type: "button" }, text);
    let timer = null;
    node.onclick = async () => {
      const answer = await click();
      if (!answer) return;
      clearTimeout(timer);
      node.style.minWidth = `${node.offsetWidth}px`;
      node.textContent = answer;
      timer = setTimeout(() => (node.textContent = text), 2000);
    };
    return node;
  };
  NC.buttons = (hint, actions) =>
    NC.html("div", { class: "nc-clock" },
      ...Object.entries(actions).map(([text, click]) => NC.button(text, click)),
      NC.html("span", {}, hint));

  // A bar with its name and value; put(share of the full width, value).
  NC.bar = (name, kind) => {
    const full = NC.html("span", { class: "nc-full" });
    const value = NC.html("span", { class: "nc-value" });
    return {
      node: NC.html("div", { class: `nc-bar ${kind}` }, NC.html("span", {}, name), full, value),
      put(share, text) {
        full.style.setProperty("--share", Math.max(0, share).toFixed(4));
        NC.write(value, text);
      },
    };
  };

  // Play, pause and step through the numbers of steps 0..length, pace(n) of them a second; show(n) draws. With reduced
  // motion it jumps.
  NC.clock = ({ length, hint, show, reset, link, unit = "step", pace = (n) => 3 + 0.8 * n }) => {
    const { button } = NC;
    const count = NC.html("output", { class: "nc-count", "aria-live": "off" });
    let n = length;
    let stop = null; // ends what is to come; null while it does not play
    let rest = true; // where the figure put it: Play begins at 0
    const put = (k) => {
      n = Math.min(length, Math.max(0, k));
      NC.write(count, `${unit} ${n}`);
      show(n);
    };
    const frame = (go) => {
      const id = requestAnimationFrame(go);
      stop = () => cancelAnimationFrame(id);
    };
    const later = (go, time) => {
      const id = setTimeout(go, time);
      stop = () => clearTimeout(id);
    };
    const pause = () => {
      stop?.();
      stop = null;
      play.textContent = "Play";
    };
    const run = () => {
      if (n >= length || rest) put(0);
      rest = false;
      play.textContent = "Pause";
      let [last, exact] = [performance.now(), n];
      const tick = (now) => {
        exact += ((now - last) / 1000) * pace(exact);
        last = now;
        put(Math.floor(exact));
        if (n < length) frame(tick);
        else pause();
      };
      const jump = () => {
        put(n < 4 ? n + 1 : 2 * n);
        if (n < length) later(jump, 1000);
        else pause();
      };
      if (still()) later(jump, 500);
      else frame(tick);
    };
    const play = button("Play", () => (stop ? pause() : run()));
    const forward = button("Step", () => {
      pause();
      rest = false;
      put(n >= length ? 1 : n + 1);
    });
    const back = button("Reset", () => {
      pause();
      NC.forget();
      reset();
    });
    const share = button("Copy link", link);
    return {
      node: NC.html("div", { class: "nc-clock" }, play, forward, back, share, count,
        NC.html("span", {}, hint)),
      put(k, byHand = false) {
        pause();
        rest = !byHand;
        put(k);
      },
      get now() {
        return n;
      },
    };
  };

  // The state as the end of an address, in letters that an anchor may hold: name_condition50_t0p5_xm1.
  NC.link = (name, state) => {
    const text = (x) => String(+x.toPrecision(6)).replace("e-", "em").replace("-", "m").replace(".", "p");
    return `${name}_${Object.entries(state).map(([key, x]) => `${key}-${text(x)}`).join("_")}`;
  };
  const plain = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // it was cut within a letter
    }
  };
  const anchor = (address) => plain(new URL(address).hash.slice(1)).split("_");
  // Whether an address carries the state of a figure of this page.
  const carries = (address) =>
    [...document.querySelectorAll(".nc-figure")].some((root) => root.dataset.figure.startsWith(`${anchor(address)[0]}.`));
  NC.forget = () => {
    if (carries(location.href)) history.replaceState(history.state, "", location.href.split("#")[0]);
  };
  // The state that a figure starts with: that of the address, within the limits of each number, or its own.
  NC.linked = (name, start, limits) => {
    const [first, ...parts] = anchor(location.href);
    const found = { ...start };
    if (first !== name) return found;
    for (const part of parts) {
      const [, key, text] = part.match(/^(\w+)-(m?\d+(?:p\d+)?(?:em?\d+)?)$/) ?? [];
      if (!key || !Object.hasOwn(limits, key)) continue;
      const x = Number(text.replace("em", "e-").replace("m", "-").replace("p", "."));
      if (Number.isFinite(x)) found[key] = NC.within(limits[key], x);
    }
    return found;
  };
  NC.share = async (words, hash) => {
    history.replaceState(history.state, "", `#${hash}`);
    try {
      await navigator.clipboard.writeText(`${location.href.split("#")[0]}#${hash}`);
      words.tell("Link copied.");
      return "Copied";
    } catch {
      words.tell("The address of the page now carries the state.");
      return "In the address";
    }
  };

  // A sentence for those who see, at once, and the same for those who listen, when the hand rests.
  NC.words = () => {
    const seen = NC.html("p", { class: "nc-words" });
    const heard = NC.html("p", { class: "nc-heard", role: "status", "aria-live": "polite" });
    let timer = null;
    return {
      nodes: [seen, heard],
      say(text, quiet) {
        NC.write(seen, text);
        if (quiet) return;
        clearTimeout(timer);
        timer = setTimeout(() => (heard.textContent = seen.textContent), 600);
      },
      tell(text) {
        clearTimeout(timer);
        const again = heard.textContent === text; // what stays is not heard
        heard.textContent = again ? "" : text;
        if (again) timer = setTimeout(() => (heard.textContent = text), 50);
      },
    };
  };

  // Places for the names of curves: beside their own curve, off every curve and every other name. A name stays where it
  // was while it can.
  const CHARACTER = 7.4;
  const width = (text) => CHARACTER * (text.length + 0.8 * (text.match(/[mwMW]/g) || []).length);
  NC.labels = (box, preferred) => {
    const last = {};
    const shares = Array.from({ length: 20 }, (_, k) => (k + 0.5) / 20);
    shares.sort((a, b) => Math.abs(a - preferred) - Math.abs(b - preferred));
    const dense = (points) => {
      const all = [];
      points.forEach(([x, y], k) => {
        const [u, v] = points[k - 1] || [x, y];
        const n = Math.min(200, Math.ceil(Math.hypot(x - u, y - v) / 5)) || 1;
        for (let i = 1; i <= n; i++) all.push([u + ((x - u) * i) / n, v + ((y - v) * i) / n]);
      });
      return all.filter(([x, y]) => x > box[0] - 9 && x < box[2] + 9 && y > box[1] - 9 && y < box[3] + 9);
    };
    return (curves, obstacles = []) => {
      const lines = curves.map(({ points }) => dense(points));
      const taken = obstacles.slice();
      return curves.map(({ name, text }, c) => {
        const wide = width(text);
        const own = lines[c];
        const rectangle = (k, side) => {
          const [x, y] = own[k];
          const left = [x + 8, x - 8 - wide, x - wide / 2, x - wide / 2][side];
          const top = [y - 8, y - 8, y - 24, y + 8][side];
          return [left, top, left + wide, top + 15];
        };
        let best = { cost: Infinity };
        const cost = ([a, b, d, e]) => {
          if (a < box[0] || b < box[1] || d > box[2] || e > box[3]) return 1e6;
          let sum = 0;
          for (const [p, q, r, s] of taken) if (a < r && d > p && b < s && e > q) sum += 1000;
          for (const line of lines) {
            if (sum >= best.cost) break; // it is no better than the best so far
            for (const [x, y] of line) if (x > a - 3 && x < d + 3 && y > b - 2 && y < e + 2) sum += 1;
          }
          return sum;
        };
        const attempt = (share, side) => {
          const k = Math.round(share * (own.length - 1));
          const spot = rectangle(k, side);
          const price = cost(spot);
          if (price < best.cost) best = { cost: price, spot, share, side };
          return price === 0;
        };
        if (!own.length || !text) return null;
        let found = last[name] && attempt(...last[name]);
        for (const share of shares) for (let side = 0; side < 4 && !found; side++) found = attempt(share, side);
        if (best.cost > 40) return null;
        last[name] = [best.share, best.side];
        taken.push(best.spot);
        return [best.spot[0], best.spot[1] + 12];
      });
    };
  };

  NC.figure = (name, draw) => (figures[name] = draw);
  const start = (root) => {
    const programs = JSON.parse(root.querySelector("script").textContent);
    const loaded = Object.fromEntries(Object.entries(programs).map(([key, program]) => [key, NC.load(program)]));
    figures[root.dataset.figure](root, loaded);
    root.classList.add("nc-ready");
    // The pictures that it replaces on a screen are the first output after it.
    const after = (cell) => root.compareDocumentPosition(cell) & Node.DOCUMENT_POSITION_FOLLOWING;
    [...document.querySelectorAll(".cell:has(.cell_output)")].find(after)?.classList.add("nc-pictures");
  };

  // Without this, or if a figure fails, the page shows the pictures that were drawn before; so it does with ?frames.
  document.addEventListener("DOMContentLoaded", () => {
    if (/[?&]frames\b/.test(location.search)) return;
    // Another state for a figure of this page, typed or by the buttons of the browser: start with it. So does the page
    // that lay before a state; a link from a state to a section lets the figure stand.
    const visited = "visited";
    addEventListener("hashchange", ({ oldURL }) => {
      const again = history.state === visited;
      history.replaceState(visited, "");
      if (carries(location.href) || (again && carries(oldURL))) location.reload();
    });
    history.replaceState(visited, "");
    for (const root of document.querySelectorAll(".nc-figure")) {
      try {
        start(root);
      } catch (error) {
        console.error(error);
      }
    }
  });
})();
