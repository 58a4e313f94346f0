// Whitening: one plane that goes from the parameters to the natural parameters, and five rules that walk in it.
NC.figure("whitening.PLANE", (root, { plane, step }) => {
  const START = { t: 0, condition: 50, rate: 0.1, eps: 0, x: 1, y: -1 };
  const [STEPS, TARGET, REACH] = [400, 1e-3, 1.4];
  const RULES = ["steepest", "natural", "plane", "eq35", "damping"];
  const NAMES = { steepest: "steepest descent", natural: "natural gradient", plane: "steepest here", eq35: "Eq. 35", damping: "damping" };
  const LEVELS = [0.03, 0.1, 0.3, 1, 3];
  const [SIZE, MIDDLE, UNIT] = [340, 170, 108];
  const CURVE = { left: 46, right: 324, top: 26, bottom: 300, most: 1, least: -6 };
  const { svg, html, set, number, text } = NC;
  const LIMITS = {
    t: { low: 0, high: 1 },
    condition: { low: 1, high: 9000 },
    rate: { low: 0.001, high: 3 },
    eps: { low: 1e-6, high: 1, zero: true },
    x: { low: -REACH, high: REACH },
    y: { low: -REACH, high: REACH },
  };
  const state = NC.linked("whitening", START, LIMITS);
  let [system, paths, kls] = [null, [], []];

  // ---- What the library computes.

  const shown = () => RULES.filter((name) => (state.eps > 0 || !["eq35", "damping"].includes(name)));
  const compute = () => {
    const [M, map, whitening, inverses, limits] = plane(state.condition, state.t, state.eps || 0.01);
    system = { map, whitening, limits };
    let theta = Float64Array.from({ length: 10 }, (_, k) => (k % 2 ? state.y : state.x));
    [paths, kls] = [RULES.map(() => []), RULES.map(() => [])];
    for (let k = 0; k <= STEPS; k++) {
      const [next, kl] = step(M, inverses, theta, state.rate);
      RULES.forEach((_, r) => {
        paths[r].push([theta[2 * r], theta[2 * r + 1]]);
        kls[r].push(kl[r]);
      });
      theta = next;
    }
  };
  const through = ([a, b, c, d], [x, y]) => [a * x + b * y, c * x + d * y];
  const pixel = (theta) => {
    const [x, y] = through(system.map, theta);
    return [MIDDLE + UNIT * x, MIDDLE - UNIT * y];
  };
  const parameters = (x, y) => {
    const [a, b, c, d] = system.map;
    const [u, v] = [(x - MIDDLE) / UNIT, (MIDDLE - y) / UNIT];
    return [(d * u - b * v) / (a * d - b * c), (a * v - c * u) / (a * d - b * c)];
  };
  const arrival = (r) => kls[r].findIndex((kl) => kl < TARGET);

  // ---- The plane.

  const lines = (parent, kind) => Object.fromEntries(RULES.map((name) => {
    const node = svg("path", { class: `nc-${kind} nc-${name}` });
    parent.append(node);
    return [name, node];
  }));
  const order = ["plane", "damping", "eq35", "steepest", "natural"];
  const raise = (parts) => order.forEach((name) => parts[name].parentNode.append(parts[name]));

  const map = NC.picture("The plane of the parameters, with the valley, the paths and the start");
  const inside = NC.box(map, "nc-plane", { left: 8, right: 334, top: 26, bottom: 332 });
  const grid = svg("path", { class: "nc-grid" });
  const valley = svg("path", { class: "nc-valley" });
  inside.append(grid, valley);
  const [walks, marks] = [lines(inside, "line"), lines(inside, "dots")];
  raise(walks);
  raise(marks);
  const clockDots = lines(inside, "now");
  map.append(inside);
  const title = text(map, 8, 16, "", "start", "nc-title");
  text(map, 12, 326, "contours: 0.03, 0.1, 0.3, 1, 3 nats", "start", "nc-axis");
  const corner = text(map, 330, 326, "", "end", "nc-axis");
  const side = text(map, 12, 42, "", "start", "nc-axis");
  NC.star(map, [MIDDLE, MIDDLE]);
  const names = Object.fromEntries(RULES.map((name) => [name, text(map, 0, 0, "", "start", `nc-label nc-${name}`)]));
  const place = NC.labels([12, 46, 330, 312], 0.5);
  const limited = (x) => NC.within(LIMITS.x, x);
  const handle = NC.handle(map, {
    label: "Start",
    move(x, y) {
      [state.x, state.y] = parameters(x, y).map(limited);
      refresh();
    },
  });

  const seen = (points) => {
    const end = points.findIndex(([x, y]) => !(x > -SIZE && x < 2 * SIZE && y > -SIZE && y < 1e4));
    return end < 0 ? points : points.slice(0, end + 1).filter(([x, y]) => Number.isFinite(x + y));
  };
  const ring = (level) => Array.from({ length: 73 }, (_, k) => {
    const [angle, r] = [(k * Math.PI) / 36, Math.sqrt(2 * level)];
    return pixel(through(system.whitening, [r * Math.cos(angle), r * Math.sin(angle)]));
  });
  let titled = null; // the plane that the title names
  const drawPlane = () => {
    const steps = Array.from({ length: 9 }, (_, k) => (k - 4) * (REACH / 4));
    const rule = (a, b) => NC.line([pixel(a), pixel(b)]);
    set(grid, { d: steps.map((g) => rule([g, -REACH], [g, REACH]) + rule([-REACH, g], [REACH, g])).join("") });
    set(valley, { d: LEVELS.map((level) => `${NC.line(ring(level))}Z`).join("") });
    const half = (state.t / 2).toFixed(2);
    if (titled !== state.t) title.replaceChildren(
      state.t === 0 ? "Parameters θ" : state.t === 1 ? "Natural parameters φ = G" : "Between them: G",
      ...(state.t === 0 ? [] : [svg("tspan", { dy: -5, "font-size": 11 }, state.t === 1 ? "½" : half), svg("tspan", { dy: 5 }, " θ")]),
    );
    titled = state.t;
    NC.write(corner, state.t === 1 ? "φ₁" : state.t === 0 ? "θ₁" : "");
    NC.write(side, state.t === 1 ? "φ₂" : state.t === 0 ? "θ₂" : "");
    handle.put(...pixel([state.x, state.y]));
    set(handle.node, { "aria-label": `Start ${number(state.x)}, ${number(state.y)}: drag it, or press arrow keys` });
  };

  // ---- The divergence.

  const chart = NC.picture("The divergence from the goal against the number of steps");
  const { left, right, top, bottom, most, least } = CURVE;
  const curves = NC.box(chart, "nc-curve", CURVE);
  const { across } = NC.steps(CURVE, STEPS);
  const down = (kl) => top + ((most - Math.log10(Math.max(kl, 1e-300))) / (most - least)) * (bottom - top);
  const scale = svg("g", { "aria-hidden": "true" });
  chart.append(scale);
  for (const k of [0, 1, 3, 10, 30, 100, 400]) text(scale, across(k), 316, k, "middle", "nc-axis");
  for (const [kl, words] of [[10, "10"], [1, "1"], [0.1, "0.1"], [0.01, "0.01"], [1e-3, "0.001"], [1e-4, "10⁻⁴"], [1e-5, "10⁻⁵"], [1e-6, "10⁻⁶"]]) {
    text(scale, left - 5, down(kl) + 4, words, "end", "nc-axis");
  }
  text(chart, left, 16, "Divergence, nats", "start", "nc-title");
  text(chart, (left + right) / 2, 334, "steps", "middle", "nc-axis");
  const target = svg("path", { class: "nc-target", d: `M${left} ${down(TARGET)}H${right}` });
  const now = svg("path", { class: "nc-target" });
  curves.append(target, now);
  const falls = lines(curves, "line");
  raise(falls);
  const fallDots = lines(curves, "now");
  chart.append(curves);
  const titles = Object.fromEntries(RULES.map((name) => [name, text(chart, 0, 0, "", "start", `nc-label nc-${name}`)]));
  const placeCurve = NC.labels([left + 4, top + 4, right - 2, bottom - 4], 0.85);

  // ---- Both, up to step n.

  const wordsOf = (name) => (name === "plane" && (state.t === 0 || state.t === 1) ? "" : NAMES[name]);
  const drawSteps = (n) => {
    const visible = shown();
    const [inPlane, inCurve] = [[], []];
    RULES.forEach((name, r) => {
      const there = visible.includes(name);
      const walk = there ? seen(paths[r].slice(0, n + 1).map(pixel)) : [];
      const fall = there ? seen(kls[r].slice(0, n + 1).map((kl, k) => [across(k), down(kl)])) : [];
      set(walks[name], { d: NC.line(walk) });
      set(marks[name], { d: name === "plane" ? "" : NC.dots(walk.slice(0, 41)) });
      set(falls[name], { d: NC.line(fall) });
      set(clockDots[name], { d: n < STEPS && walk.length ? NC.dots(walk.slice(-1)) : "" });
      set(fallDots[name], { d: n < STEPS && fall.length ? NC.dots(fall.slice(-1)) : "" });
      const words = wordsOf(name);
      if (walk.length) inPlane.push({ name, text: words, points: walk });
      if (fall.length) inCurve.push({ name, text: words, points: fall });
    });
    set(now, { d: n < STEPS ? `M${across(n)} ${top}V${bottom}` : "" });
    const [x, y] = pixel([state.x, state.y]);
    const spots = place(inPlane, [[x - 14, y - 14, x + 14, y + 14], [MIDDLE - 9, MIDDLE - 9, MIDDLE + 9, MIDDLE + 9]]);
    const heights = placeCurve(inCurve);
    RULES.forEach((name) => {
      const one = inPlane.findIndex((curve) => curve.name === name);
      const two = inCurve.findIndex((curve) => curve.name === name);
      NC.label(names[name], wordsOf(name), one < 0 ? null : spots[one]);
      NC.label(titles[name], wordsOf(name), two < 0 ? null : heights[two]);
    });
  };

  // ---- Words.

  const words = NC.words();
  const fate = (r) => {
    const k = arrival(r);
    if (k >= 0) return `${k} ${k === 1 ? "step" : "steps"}`;
    return state.rate >= system.limits[r] ? "diverges" : `more than ${STEPS} steps`;
  };
  const sentence = () => {
    const said = [`steepest descent: ${fate(0)}`, `natural gradient: ${fate(1)}`];
    if (state.t > 0 && state.t < 1) said.push(`steepest descent in this plane: ${fate(2)}`);
    if (state.eps > 0) said.push(`regularized by Eq. 35: ${fate(3)}`, `damped: ${fate(4)}`);
    const from = `From (${number(state.x)}, ${number(state.y)}) to a divergence of 0.001 nats. `;
    const list = said.join("; ");
    return `${from}${list[0].toUpperCase()}${list.slice(1)}. Steepest descent is stable below step size ${number(system.limits[0])}.`;
  };

  // ---- Controls.

  const change = (key) => (x) => {
    state[key] = x;
    refresh();
  };
  const controls = {
    t: NC.control({ label: "whitened, t", ...LIMITS.t, value: state.t, change: change("t") }),
    rate: NC.control({ label: "step size", ...LIMITS.rate, log: true, value: state.rate, change: change("rate") }),
    condition: NC.control({ label: "condition number", ...LIMITS.condition, log: true, value: state.condition, change: change("condition") }),
    eps: NC.control({ label: "ε of Eq. 35", ...LIMITS.eps, log: true, value: state.eps, change: change("eps") }),
  };
  controls.t.mark([{ value: 0, text: "θ" }, { value: 1, text: "φ" }]);
  controls.condition.mark([{ value: 6890, text: "the paper’s" }]);
  controls.eps.mark([{ value: 0.01, text: "the paper’s" }, { value: 0, text: "0" }]);
  const clock = NC.clock({
    length: STEPS,
    hint: "Drag the dot; the star is the goal.",
    show: (n) => system && drawSteps(n),
    reset() {
      Object.assign(state, START);
      Object.entries(controls).forEach(([key, control]) => control.set(state[key]));
      clock.put(STEPS);
      refresh();
    },
    link: () => NC.share(words, NC.link("whitening", state)),
  });
  const refresh = (quiet) => {
    compute();
    drawPlane();
    drawSteps(clock.now);
    controls.rate.mark([
      { value: system.limits[0], text: "limit", kind: "steepest" },
      { value: system.limits[1], text: "limit", kind: "natural" },
    ]);
    words.say(sentence(), quiet);
  };
  root.append(
    html("div", { class: "nc-panels" }, map, chart),
    html("div", { class: "nc-controls" }, ...Object.values(controls).map((control) => control.node)),
    clock.node,
    ...words.nodes,
  );
  refresh(true);
  clock.put(STEPS);
  if (location.hash.startsWith("#whitening_")) root.scrollIntoView({ block: "center" });
  root.nc = { state, refresh, programs: { plane, step }, get paths() { return paths; }, get kls() { return kls; } };
});
