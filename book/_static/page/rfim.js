// RFIM: a neuron with two weights, the points in its spotlight, its metric among the weights, and four ways to learn.
NC.figure("rfim.LIGHT", (root, programs) => {
  const ACTIVATIONS = [
    { key: "sigmoid", text: "sigmoid", brightest: 0.25 },
    { key: "tanh", text: "tanh", brightest: 1 },
    { key: "relu", text: "ReLU", brightest: 1 },
  ];
  const METHODS = [
    { name: "sgd", text: "gradient" },
    { name: "momentum", text: "momentum" },
    { name: "kfac", text: "K-FAC" },
    { name: "rngd", text: "relative natural gradient", short: "relative natural" },
  ];
  const [STEPS, FAR, CLOSE, GRID, ROUND] = [60, 100, 1e-3, 33, 48];
  const LEVELS = [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0];
  const [WIDE, HIGH] = [4.2, 3.2]; // half a sheet; what is dragged stays EDGE inside
  const EDGE = 0.3;
  const { svg, html, set, number } = NC;
  const [points, labels] = programs.cloud(1);
  const COUNT = labels.length;
  const START = { activation: 0, w1: 2, w2: -1.5, rate: 0.5, eps: 0.01, stretch: 1, step: 0 };
  labels.forEach((_, k) => {
    START[`x${k + 1}`] = points[2 * k];
    START[`y${k + 1}`] = points[2 * k + 1];
  });
  const [ACROSS, UP] = [WIDE, HIGH].map((most) => ({ low: EDGE - most, high: most - EDGE }));
  const LIMITS = {
    activation: { low: 0, high: ACTIVATIONS.length - 1, whole: true },
    rate: { low: 0.02, high: 2 },
    eps: { low: 1e-6, high: 1 },
    stretch: { low: 0.25, high: 4 },
    step: { low: 0, high: STEPS, whole: true },
  };
  for (const key of Object.keys(START)) if (/\d$/.test(key)) LIMITS[key] = /^(w1|x)/.test(key) ? ACROSS : UP;
  const state = NC.linked("rfim", START, LIMITS);
  const neuron = () => ACTIVATIONS[state.activation];
  const library = (name, ...given) => programs[`${name}_${neuron().key}`](...given);

  // ---- What the library computes: four paths with their losses, and how the neuron sees its points on its own.

  let [cloud, paths, losses, lowest] = [null, [], [], 0];
  const compute = () => {
    cloud = labels.reduce((all, _, k) => [...all, state[`x${k + 1}`], state[`y${k + 1}`]], []);
    [paths, losses] = [METHODS.map(() => []), METHODS.map(() => [])];
    const first = METHODS.flatMap(() => [state.w1, state.w2]);
    const gone = METHODS.map(() => false);
    let [w, velocity] = [Float64Array.from(first), new Float64Array(2)];
    for (let k = 0; k <= STEPS; k++) {
      METHODS.forEach((_, m) => {
        const place = [w[2 * m], w[2 * m + 1]];
        gone[m] ||= !place.every((x) => Math.abs(x) <= FAR);
        paths[m].push(gone[m] ? [NaN, NaN] : place);
        if (gone[m]) w.set([state.w1, state.w2], 2 * m);
        if (gone[1]) velocity.fill(0);
      });
      const [next, faster, loss] = library("step", w, velocity, cloud, labels, state.rate, state.eps, state.stretch);
      METHODS.forEach((_, m) => losses[m].push(gone[m] ? NaN : loss[m]));
      [w, velocity] = [next, faster];
    }
    lowest = Math.min(...losses.flat().filter(Number.isFinite));
  };
  const arrival = (m) => losses[m].findIndex((loss) => loss < lowest + CLOSE);
  const left = (n) => paths[3].slice(0, n + 1).filter(([x]) => Number.isFinite(x)).length - 1; // the last step that is there
  let seen = null;
  const look = (n) => {
    const w = paths[3][left(n)];
    const [nu, steps, ring, other] = library("look", w, cloud, labels, state.eps, state.stretch);
    const around = ([a, b, c, d]) => Array.from({ length: ROUND }, (_, k) => {
      const angle = (2 * Math.PI * k) / ROUND;
      return [w[0] + a * Math.cos(angle) + b * Math.sin(angle), w[1] + c * Math.cos(angle) + d * Math.sin(angle)];
    });
    const order = [...nu].sort((a, b) => b - a);
    const half = nu.reduce((sum, x) => sum + x, 0) / 2;
    let sum = 0;
    const many = order.findIndex((x) => (sum += x) >= half) + 1;
    seen = { w, nu, steps: [[steps[0], steps[1]], [steps[2], steps[3]]], rings: { rngd: around(ring), kfac: around(other) }, many };
  };

  // ---- Two sheets of one scale: inputs and weights.

  const [LEFT, RIGHT, TOP] = [22, 330, 24];
  const UNIT = (RIGHT - LEFT) / (2 * WIDE);
  const BOTTOM = TOP + 2 * HIGH * UNIT;
  const MIDDLE = [(LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2];
  const pixel = ([x, y]) => [MIDDLE[0] + UNIT * x, MIDDLE[1] - UNIT * y];
  const inside = (x, y) => [(x - MIDDLE[0]) / UNIT, (MIDDLE[1] - y) / UNIT]
    .map((value, k) => NC.within([ACROSS, UP][k], value));
  const sheet = (name, own, title, letter) => {
    const drawing = NC.picture(name, 340, Math.ceil(BOTTOM) + 17);
    const window = NC.box(drawing, `nc-${own}`, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });
    drawing.append(window);
    NC.text(drawing, LEFT, 15, title, "start", "nc-title");
    const ticks = svg("g", { "aria-hidden": "true" });
    drawing.append(ticks);
    for (const x of [-2, 0, 2]) {
      const words = String(x).replace("-", "−");
      NC.text(ticks, pixel([x, 0])[0], BOTTOM + 14, words, "middle", "nc-axis");
      NC.text(ticks, LEFT - 3, pixel([0, x])[1] + 4, words, "end", "nc-axis");
    }
    NC.text(ticks, RIGHT, BOTTOM + 14, `${letter}₁`, "end", "nc-axis");
    NC.text(ticks, LEFT - 3, TOP + 10, `${letter}₂`, "end", "nc-axis");
    const part = (kind) => {
      const node = svg("path", { class: kind });
      window.append(node);
      return node;
    };
    return { drawing, window, part };
  };
  const head = ([x, y], [p, q], size = 9) => {
    const angle = Math.atan2(q - y, p - x);
    const wing = (turn) => [p - size * Math.cos(angle + turn), q - size * Math.sin(angle + turn)];
    return NC.line([wing(0.45), [p, q], wing(-0.45)]);
  };

  // The inputs. The light is a stripe across the weights: nu where the neuron's input is that of the place.
  const inputs = sheet("The plane of the inputs: points, and the spotlight of the neuron", "inputs", "Inputs: the neuron’s spotlight ν", "x");
  const REACH = Math.hypot(WIDE, HIGH);
  const distances = Array.from({ length: 81 }, (_, k) => REACH * ((k - 40) / 40) ** 3);
  const stops = distances.map((d) => svg("stop", { class: "nc-lamp", offset: 0.5 + d / (2 * REACH) }));
  const light = svg("linearGradient", { id: "nc-light", gradientUnits: "userSpaceOnUse" }, ...stops);
  inputs.drawing.prepend(svg("defs", {}, light));
  inputs.window.append(svg("rect", { x: LEFT, y: TOP, width: RIGHT - LEFT, height: BOTTOM - TOP, fill: "url(#nc-light)" }));
  const [border, shaft, tip] = [inputs.part("nc-border"), inputs.part("nc-level"), inputs.part("nc-level")];
  const samples = [...labels].map((label, k) => {
    const handle = NC.handle(inputs.drawing, {
      label: `Point ${k + 1}`,
      kind: `nc-sample${label ? "" : " nc-hollow"}`,
      reach: 13,
      move(x, y) {
        [state[`x${k + 1}`], state[`y${k + 1}`]] = inside(x, y);
        refresh();
      },
    });
    return handle;
  });
  const weigh = (x, y) => {
    [state.w1, state.w2] = inside(x, y);
    refresh(0);
  };
  const arrow = NC.handle(inputs.drawing, { label: "Weights", kind: "nc-tip", reach: 14, move: weigh });
  const legend = svg("g", { class: "nc-legend" });
  inputs.drawing.append(legend);
  for (const [x, kind, words] of [[LEFT + 12, "nc-sample", "label 1"], [LEFT + 84, "nc-sample nc-hollow", "label 0"]]) {
    legend.append(svg("g", { class: kind }, svg("circle", { class: "nc-point", cx: x, cy: BOTTOM - 11, r: 5 })));
    NC.text(legend, x + 9, BOTTOM - 7, words, "start", "nc-axis nc-over");
  }
  const full = NC.text(legend, RIGHT - 6, BOTTOM - 7, "", "end", "nc-axis nc-over");

  const drawInputs = (n) => {
    const { w, nu, many } = seen;
    const size = Math.hypot(...w);
    const [c, s] = size > 1e-9 ? [w[0] / size, w[1] / size] : [1, 0];
    const [from, to] = [pixel([-REACH * c, -REACH * s]), pixel([REACH * c, REACH * s])];
    set(light, { x1: from[0], y1: from[1], x2: to[0], y2: to[1] });
    const [shine] = library("nu", distances.map((d) => d * size));
    const { brightest } = neuron();
    stops.forEach((stop, k) => set(stop, { "stop-opacity": (shine[k] / brightest).toFixed(3) }));
    set(border, { d: NC.line([pixel([-REACH * s, REACH * c]), pixel([REACH * s, -REACH * c])]) });
    const [origin, end] = [pixel([0, 0]), pixel(w)];
    set(shaft, { d: NC.line([origin, end]) });
    set(tip, { d: size > 0.1 ? head(origin, end, 10) : "" });
    samples.forEach((sample, k) => {
      const place = [cloud[2 * k], cloud[2 * k + 1]];
      sample.put(...pixel(place));
      set(sample.dot, { r: (3 + 6 * Math.sqrt(nu[k] / brightest)).toFixed(2) });
      set(sample.node, { "aria-label": `Point ${k + 1}, label ${labels[k]}, at ${place.map(number).join(", ")}, ν ${number(nu[k])}: drag it, or press arrow keys` });
    });
    set(arrow.node, { visibility: n ? "hidden" : "visible" });
    arrow.put(...pixel([state.w1, state.w2]));
    NC.write(full, `brightest: ν = ${brightest}`);
    return many;
  };

  // The weights.
  const weights = sheet("The plane of the weights: the loss, two metrics, and the paths of four methods", "weights", "Weights: the loss, the metric, four paths", "w");
  const contours = weights.part("nc-valley");
  const rings = { kfac: weights.part("nc-line nc-ring-of nc-kfac"), rngd: weights.part("nc-line nc-ring-of nc-rngd") };
  const order = [2, 0, 1, 3];
  const parts = (parent, kind) => {
    const found = METHODS.map(({ name }) => svg("path", { class: `nc-${kind} nc-${name}` }));
    order.forEach((m) => parent.append(found[m]));
    return found;
  };
  const walks = parts(weights.window, "line");
  const marks = parts(weights.window, "dots");
  const arrows = ["sgd", "rngd"].map((name) => [weights.part(`nc-line nc-head nc-${name}`), weights.part(`nc-line nc-head nc-${name}`)]);
  const now = parts(weights.window, "now");
  const names = METHODS.map(({ name }) => NC.text(weights.drawing, 0, 0, "", "start", `nc-label nc-${name}`));
  const place = NC.labels([LEFT + 2, TOP + 2, RIGHT - 2, BOTTOM - 2], 0.6);
  const handle = NC.handle(weights.drawing, { label: "Weights", move: weigh });
  const axis = (half, k) => -half + (2 * half * k) / (GRID - 1);
  const grid = Array.from({ length: GRID * GRID }, (_, k) => [axis(WIDE, k % GRID), axis(HIGH, Math.floor(k / GRID))]).flat();
  const drawValley = () => {
    const [heights] = library("losses", grid, cloud, labels);
    const at = (x, y) => pixel([axis(WIDE, x), axis(HIGH, y)]);
    set(contours, { d: LEVELS.map((level) => NC.contour(heights, GRID, level, at)).join("") });
  };
  const bounded = (list) => list.map(pixel).filter(([x]) => Number.isFinite(x));
  const drawPaths = () => {
    const curves = METHODS.map(({ name, text, short }, m) => ({ name, text: short ?? text, points: bounded(paths[m]) }));
    curves.forEach(({ points: walk }, m) => {
      set(walks[m], { d: NC.line(walk) });
      set(marks[m], { d: m ? NC.dots(walk) : "" });
    });
    return curves;
  };
  const drawWeights = (n, curves) => {
    const { w, steps } = seen;
    for (const [name, ring] of Object.entries(seen.rings)) set(rings[name], { d: `${NC.line(ring.map(pixel))}Z` });
    const here = pixel(w);
    steps.forEach(([dx, dy], k) => {
      const there = pixel([w[0] + dx, w[1] + dy]);
      const shown = there.every(Number.isFinite);
      set(arrows[k][0], { d: shown ? NC.line([here, there]) : "" });
      set(arrows[k][1], { d: shown ? head(here, there) : "" });
    });
    METHODS.forEach((_, m) => {
      const spot = bounded([paths[m][n]]);
      set(now[m], { d: n && spot.length ? NC.dots(spot) : "" });
    });
    const [x, y] = pixel([state.w1, state.w2]);
    handle.put(x, y);
    for (const { node } of [handle, arrow]) {
      set(node, { "aria-label": `Weights ${number(state.w1)}, ${number(state.w2)}: drag them, or press arrow keys` });
    }
    if (!curves) return;
    const spots = place([...order].reverse().map((m) => curves[m]), [[x - 14, y - 14, x + 14, y + 14]]);
    [...order].reverse().forEach((m, k) => NC.label(names[m], curves[m].text, spots[k]));
  };

  // ---- The loss.

  const chart = NC.picture("The loss above the lowest that a method reaches, against the number of steps", 340, 162);
  const CURVE = { left: 46, right: 326, top: 22, bottom: 124, most: 0.7, least: -5, log: true };
  const axisOfSteps = NC.steps(CURVE, STEPS);
  const scale = svg("g", { "aria-hidden": "true" });
  chart.append(scale);
  const falls = NC.part(chart, "nc-falls", CURVE, METHODS, 16);
  const above = (loss) => falls.down(Math.max(loss - lowest, 1e-9));
  for (const k of [0, 1, 3, 10, 30, 60]) NC.text(scale, axisOfSteps.across(k), 154, k, "middle", "nc-axis");
  for (const [x, words] of [[1, "1"], [0.1, "0.1"], [0.01, "0.01"], [1e-3, "0.001"], [1e-4, "10⁻⁴"]]) {
    NC.text(scale, CURVE.left - 5, falls.down(x) + 4, words, "end", "nc-axis");
  }
  NC.text(scale, CURVE.left - 12, 154, "step", "end", "nc-axis");
  NC.text(chart, 8, 14, "Loss above the lowest reached, nats", "start", "nc-title");
  falls.box.prepend(svg("path", { class: "nc-target", d: `M${CURVE.left} ${falls.down(CLOSE)}H${CURVE.right}` }));
  const cursor = svg("path", { class: "nc-target" });
  chart.append(cursor);
  const scrub = NC.scrub(chart, axisOfSteps.at, STEPS, () => clock);
  const drawLosses = () => {
    const curves = METHODS.map(({ name, text, short }, m) => ({
      name, text: short ?? text,
      points: losses[m].map((loss, k) => [axisOfSteps.across(k), above(loss)]).filter(([, y]) => Number.isFinite(y)),
    }));
    curves.forEach(({ points: curve }, m) => set(falls.lines[m], { d: NC.line(curve) }));
    falls.name([...order].reverse(), curves);
  };
  const drawCursor = (n) => {
    const x = axisOfSteps.across(n);
    set(cursor, { d: `M${x.toFixed(1)} ${CURVE.top}V${CURVE.bottom}` });
    scrub.put(n, x, CURVE.bottom);
    METHODS.forEach((_, m) => {
      const y = above(losses[m][n]);
      set(falls.dots[m], { d: Number.isFinite(y) ? NC.dots([[x, y]]) : "" });
    });
  };

  // ---- Words.

  const words = NC.words();
  let quiet = true;
  const fate = (m) => {
    const k = arrival(m);
    if (k >= 0) return `after ${k}`;
    return losses[m].some(Number.isNaN) ? "runs away" : `not in ${STEPS}`;
  };
  const told = () => {
    const list = METHODS.map(({ text }, m) => `${text} ${fate(m)}`).join(", ");
    const n = left(clock.now);
    const last = n < clock.now ? ", the last before the relative natural gradient runs away" : "";
    return `Step ${n}${last}: half of all ν falls on ${seen.many} of the ${COUNT} points; loss ${number(losses[3][n])} nats. `
      + `Within 0.001 nats of the lowest loss, in steps: ${list}.`;
  };

  // ---- Controls.

  const change = (key) => (x) => {
    state[key] = x;
    refresh();
  };
  const choice = NC.choice({ label: "neuron", options: ACTIVATIONS.map(({ text }) => text), value: state.activation, change: change("activation") });
  const controls = {
    rate: NC.control({ label: "step size", ...LIMITS.rate, log: true, value: state.rate, change: change("rate") }),
    eps: NC.control({ label: "damping ε", ...LIMITS.eps, log: true, value: state.eps, change: change("eps") }),
    stretch: NC.control({ label: "stretch w₁", ...LIMITS.stretch, log: true, value: state.stretch, change: change("stretch") }),
  };
  controls.stretch.mark([{ value: 1, text: "as it is" }]);
  const drawStep = (n) => {
    look(n);
    drawInputs(n);
    drawWeights(n);
    drawCursor(n);
    words.say(told(), quiet);
  };
  const clock = NC.clock({
    length: STEPS,
    hint: "Drag the points, the arrow, the dot.",
    show(n) {
      state.step = n;
      if (cloud) drawStep(n);
    },
    reset() {
      Object.assign(state, START);
      Object.entries({ ...controls, activation: choice }).forEach(([key, control]) => control.set(state[key]));
      refresh(START.step);
    },
    link: () => {
      const moved = Object.entries(state).filter(([key, x]) => x !== START[key]);
      return NC.share(words, NC.link("rfim", Object.fromEntries(moved)));
    },
  });
  // The contours and the names follow in the next frame.
  let waiting = 0;
  const settle = () => {
    waiting = 0;
    drawValley();
    drawWeights(clock.now, drawPaths());
    drawLosses();
  };
  const refresh = (n) => {
    compute();
    drawPaths();
    if (n === undefined) drawStep(clock.now);
    else clock.put(n, true);
    waiting ||= requestAnimationFrame(settle);
  };
  root.append(
    html("div", { class: "nc-panels" }, inputs.drawing, weights.drawing),
    html("div", { class: "nc-panels nc-under" },
      html("div", { class: "nc-column" }, choice.node, ...Object.values(controls).map((control) => control.node)), chart),
    clock.node,
    ...words.nodes,
  );
  clock.put(state.step);
  refresh();
  quiet = false;
  if (location.hash.startsWith("#rfim_")) root.scrollIntoView({ block: "center" });
  root.nc = {
    state, refresh, programs,
    get paths() { return paths; },
    get losses() { return losses; },
    get seen() { return seen; },
    get busy() { return Boolean(waiting); },
  };
});
