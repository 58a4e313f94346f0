// Boltzmann: a machine of 4 x 3 units learns four patterns by four rules; its Fisher matrix at each step is a map.
NC.figure("boltzmann.MACHINE", (root, programs) => {
  const { penalized, next_gamma: nextGamma, natural, whitened, off_diagonal: offDiagonal } = programs;
  const START = { method: 2, rate: 0.1, gamma: 0.01, threshold: 0.01, eps: 0.01, step: 20 };
  const [STEPS, P, FRACTION, PACE] = [100, 19, 0.05, 0.1];
  const BEST = -Math.log(4);
  const METHODS = [
    { name: "steepest", text: "plain gradient", short: "plain", heeds: ["rate"] },
    { name: "penalty", text: "penalty", short: "penalty", heeds: ["rate", "gamma", "threshold"] },
    { name: "whitened", text: "learned whitening", short: "whitening", heeds: ["rate", "eps"] },
    { name: "natural", text: "natural gradient", short: "natural", heeds: ["rate", "eps"] },
  ];
  const { svg, html, set, write, number } = NC;
  const LIMITS = {
    method: { low: 0, high: METHODS.length - 1, whole: true },
    rate: { low: 0.01, high: 0.5 },
    gamma: { low: 1e-5, high: 1 },
    threshold: { low: 1e-4, high: 0.2 },
    eps: { low: 1e-4, high: 1 },
    step: { low: 0, high: STEPS, whole: true },
  };
  const state = NC.linked("boltzmann", START, LIMITS);
  const [origin, patterns] = programs.start(1);

  // ---- What the library computes: a step of each method, and what the machine was before it.

  const eye = (n) => Float64Array.from({ length: n * n }, (_, k) => +(k % (n + 1) === 0));
  const step = [
    (now) => {
      const [theta, likelihood, , fisher] = penalized(now.theta, patterns, state.rate, 0);
      return [{ theta }, likelihood, fisher];
    },
    (now) => {
      const [theta, likelihood, covariance, fisher] = penalized(now.theta, patterns, state.rate, now.gamma[0]);
      const [gamma] = nextGamma(covariance, now.gamma, state.threshold, FRACTION);
      return [{ theta, gamma }, likelihood, fisher, covariance];
    },
    (now) => {
      const { theta, A, B, mean } = now;
      const [next, C, D, center, likelihood, fisher] = whitened(theta, A, B, mean, patterns, state.rate, PACE, state.eps);
      return [{ theta: next, A: C, B: D, mean: center }, likelihood, fisher];
    },
    (now) => {
      const [theta, likelihood, fisher] = natural(now.theta, patterns, state.rate, state.eps);
      return [{ theta }, likelihood, fisher];
    },
  ];
  const runs = METHODS.map(() => ({ done: 0, likelihood: [], share: [], fisher: [], gamma: [], exceeding: [] }));
  const begin = (run) => {
    run.done = 0;
    run.now = { theta: origin, gamma: [state.gamma], A: eye(4), B: eye(3), mean: new Float64Array(7) };
  };
  // What is not computed yet keeps the values of the settings before.
  const advance = (m) => {
    const run = runs[m];
    const [next, [likelihood], fisher, covariance] = step[m](run.now);
    const k = run.done++;
    run.likelihood[k] = likelihood;
    run.fisher[k] = fisher;
    run.share[k] = offDiagonal(fisher)[0][0];
    if (covariance) {
      run.gamma[k] = run.now.gamma[0];
      run.exceeding[k] = covariance.filter((c) => Math.abs(c) > state.threshold).length;
    }
    run.now = next;
  };
  const busy = () => runs.some(({ done }) => done <= STEPS);
  const order = () => [state.method, ...[3, 2, 0, 1].filter((m) => m !== state.method)];
  const FIRST = 5; // steps of the chosen method that an answer shows however slow the machine is
  const work = (time) => {
    const end = performance.now() + time;
    while (runs[state.method].done < FIRST) advance(state.method);
    while (busy()) {
      for (const m of order()) {
        if (runs[m].done <= STEPS) advance(m);
        if (performance.now() > end) return !busy();
      }
    }
    return !busy();
  };
  const compute = NC.frames(work, (finished) => draw(finished));

  // ---- Maps of a matrix: full colour is its largest entry.

  const heat = (parent, x, y, size) => {
    const cells = Array.from({ length: P * P }, (_, k) =>
      svg("rect", { x: x + (k % P) * size, y: y + Math.floor(k / P) * size, width: size, height: size, "fill-opacity": 0 }));
    parent.append(...cells);
    const seen = [];
    return (G) => {
      const most = G.reduce((m, g) => Math.max(m, Math.abs(g)), 0);
      G.forEach((g, k) => {
        const shade = Math.round((100 * g) / most);
        if (shade === seen[k] || !Number.isFinite(shade)) return;
        seen[k] = shade;
        set(cells[k], { "fill-opacity": Math.abs(shade) / 100, class: shade < 0 ? "nc-negative" : "nc-positive" });
      });
    };
  };
  const text = (drawing, x, y, words, anchor = "start", kind = "nc-axis") => NC.text(drawing, x, y, words, anchor, kind);

  const [CELL, LEFT, TOP] = [12, 18, 37];
  const map = NC.picture("The Fisher matrix as a map", 340, 267);
  map.append(svg("rect", { x: LEFT, y: TOP, width: P * CELL, height: P * CELL, class: "nc-ground" }));
  const cells = svg("g", { "shape-rendering": "crispEdges" });
  map.append(cells);
  const drawMap = heat(cells, LEFT, TOP, CELL);
  const title = text(map, 0, 14, "", "start", "nc-title");
  const edges = svg("path", { class: "nc-grid nc-edges", d: [4, 7].map((k) =>
    `M${LEFT + k * CELL} ${TOP}v${P * CELL}M${LEFT} ${TOP + k * CELL}h${P * CELL}`).join("") });
  const block = svg("path", { class: "nc-block nc-penalty", d: [[4, 0, 3, 4], [0, 4, 4, 3]].map(([i, j, m, n]) =>
    `M${LEFT + i * CELL} ${TOP + j * CELL}h${m * CELL}v${n * CELL}h${-m * CELL}z`).join("") });
  map.append(edges, block);
  [["visible", 1.7], ["hidden", 5.8], ["pairs of both", 13]].forEach(([words, k]) => {
    text(map, LEFT + k * CELL, TOP - 5, words, "middle");
    text(map, 0, 0, words, "middle").setAttribute("transform", `translate(${LEFT - 6} ${TOP + k * CELL}) rotate(-90)`);
  });
  const RIGHT = LEFT + P * CELL + 12;
  const share = text(map, RIGHT, 62, "", "start", "nc-share");
  text(map, RIGHT, 80, "lies off the");
  text(map, RIGHT, 94, "diagonal,");
  const before = text(map, RIGHT, 112, "");
  text(map, RIGHT, 126, "at the start");
  const probe = [152, 166, 184].map((y) => text(map, RIGHT, y, ""));
  for (const [y, kind, words] of [[216, "positive", "positive"], [233, "negative", "negative"]]) {
    map.append(svg("rect", { x: RIGHT, y: y - 10, width: 11, height: 11, class: `nc-${kind}` }));
    text(map, RIGHT + 16, y, words);
  }
  text(map, RIGHT, 250, "full colour");
  const largest = text(map, RIGHT, 263, "");

  // A cell that is pointed at: what it couples, and how much.
  const low = (k) => "₁₂₃₄"[k];
  const named = (k) => {
    const [v, h] = state.method === 2 ? ["x", "y"] : ["v", "h"];
    if (k < 4) return v + low(k);
    return k < 7 ? h + low(k - 4) : `${v + low(Math.floor((k - 7) / 3))}${h + low((k - 7) % 3)}`;
  };
  let spot = [1, 10];
  const point = (i, j) => {
    spot = [i, j].map((k) => Math.min(P - 1, Math.max(0, k)));
    drawSpot();
    words.tell(`${named(spot[0])} and ${named(spot[1])}: ${probe[2].textContent}`);
  };
  const at = (pixel, start) => Math.floor((pixel - start) / CELL);
  const finger = NC.handle(map, { label: "Cell of the matrix", step: CELL, move: (x, y) => point(at(y, TOP), at(x, LEFT)) });
  finger.node.classList.add("nc-cell");
  cells.onpointerdown = (event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    point(at(y, TOP), at(x, LEFT));
  };
  const drawSpot = () => {
    const [i, j] = spot;
    const G = runs[state.method].fisher[clock.now];
    finger.put(LEFT + (j + 0.5) * CELL, TOP + (i + 0.5) * CELL);
    set(finger.node, { "aria-label": `Cell ${named(i)}, ${named(j)}: press arrow keys for another` });
    if (!G) return;
    [i === j ? "variance of" : "covariance", i === j ? named(i) : `${named(i)}, ${named(j)}`, number(G[P * i + j])]
      .forEach((words, k) => write(probe[k], words));
  };

  // ---- Which method: a small map of each.

  const choice = html("fieldset", { class: "nc-choice" }, html("legend", { class: "nc-heard" }, "Method"));
  const small = METHODS.map(({ name, text: words, short }, m) => {
    const icon = svg("svg", { viewBox: "0 0 76 76", "aria-hidden": "true", "shape-rendering": "crispEdges" });
    const input = html("input", { type: "radio", name: "nc-method", "aria-label": words });
    input.onchange = () => {
      state.method = m;
      refresh([]);
    };
    choice.append(html("label", { class: `nc-${name}` }, input, icon, html("span", {}, short)));
    return { input, draw: heat(icon, 0, 0, 4) };
  });

  // ---- Log-likelihood and share off the diagonal, against steps.

  const chart = NC.picture("Log-likelihood, and the share off the diagonal, against the number of steps", 340, 352);
  const WIDE = { left: 46, right: 326 };
  const { left, right } = WIDE;
  const { across, at: stepAt } = NC.steps(WIDE, STEPS);
  const HIGH = NC.part(chart, "nc-part-0", { ...WIDE, top: 24, bottom: 158, least: -4, most: -1.25 }, METHODS);
  const LOW = NC.part(chart, "nc-part-1", { ...WIDE, top: 190, bottom: 324, least: 0, most: 1 }, METHODS, 18);
  const scale = svg("g", { "aria-hidden": "true" });
  chart.append(scale);
  text(chart, left, 16, "Log-likelihood of a pattern, nats", "start", "nc-title");
  text(chart, left, 182, "Share of the matrix off its diagonal", "start", "nc-title");
  for (const y of [-4, -3, -2]) text(scale, left - 5, HIGH.down(y) + 4, number(y).replace(".00", ""), "end");
  text(scale, left - 5, HIGH.down(BEST) + 4, "best", "end");
  for (const y of [0, 0.5, 1]) text(scale, left - 5, LOW.down(y) + 4, `${100 * y} %`, "end");
  for (const k of [0, 1, 3, 10, 30, 100]) text(scale, across(k), 348, k, "middle");
  text(chart, left - 12, 348, "step", "end");
  HIGH.box.prepend(svg("path", { class: "nc-target", d: `M${left} ${HIGH.down(BEST)}H${right}` }));
  const gamma = svg("path", { class: "nc-line nc-gamma nc-penalty" });
  LOW.box.prepend(gamma);
  const gammaName = text(chart, 0, 0, "", "start", "nc-label nc-penalty");
  const cursor = svg("path", { class: "nc-target" });
  chart.append(cursor);
  const scrub = NC.scrub(chart, stepAt, STEPS, () => clock);

  const curve = (part, values) => values.slice(0, STEPS + 1)
    .map((y, k) => [across(k), part.down(y)])
    .filter(([, y]) => Number.isFinite(y));
  const drawLines = (finished) => {
    [[HIGH, "likelihood"], [LOW, "share"]].forEach(([part, key]) => {
      const curves = METHODS.map(({ name, text: words }, m) => ({ name, text: words, points: curve(part, runs[m][key]) }));
      const extra = part === LOW && state.method === 1 ? [{ name: "gamma", text: "γ", points: curve(part, runs[1].gamma) }] : [];
      if (part === LOW) set(gamma, { d: extra.length ? NC.line(extra[0].points) : "" });
      curves.forEach(({ points }, m) => {
        set(part.lines[m], { d: NC.line(points), class: `nc-line nc-${METHODS[m].name}${m === state.method ? " nc-chosen" : ""}` });
      });
      NC.front(part.box, part.lines[state.method], ...part.dots);
      if (!finished) return; // names wait until the lines stand still
      const [spot] = part.name(order(), curves, extra);
      if (part === LOW) NC.label(gammaName, "γ", spot);
    });
  };
  const drawStep = (n) => {
    const run = runs[state.method];
    set(cursor, { d: `M${across(n).toFixed(1)} ${HIGH.top}V${LOW.bottom}` });
    scrub.put(n, across(n), LOW.bottom);
    [[HIGH, "likelihood"], [LOW, "share"]].forEach(([part, key]) => METHODS.forEach((_, m) => {
      const y = part.down(runs[m][key][n]);
      set(part.dots[m], { d: Number.isFinite(y) ? NC.dots([[across(n), y]]) : "" });
    }));
    small.forEach(({ input, draw: paint }, m) => {
      input.checked = m === state.method;
      if (runs[m].fisher[n]) paint(runs[m].fisher[n]);
    });
    write(title, `${state.method === 2 ? "Fisher matrix of the whitened units" : "Fisher matrix"}, step ${n}`);
    set(block, { visibility: state.method === 1 ? "visible" : "hidden" });
    if (run.fisher[n]) {
      drawMap(run.fisher[n]);
      write(share, percent(run.share[n]));
      write(before, percent(run.share[0]));
      write(largest, `is ${number(run.fisher[n].reduce((m, g) => Math.max(m, Math.abs(g)), 0))}`);
    }
    drawSpot();
  };
  const percent = (x) => `${Math.round(100 * x)}\u00a0%`;
  const draw = (finished) => {
    drawLines(finished);
    drawStep(clock.now);
    words.say(told(), quiet);
  };

  // ---- Words.

  const words = NC.words();
  let quiet = true;
  const told = () => {
    const [n, run] = [clock.now, runs[state.method]];
    const value = (list, show) => (list[n] === undefined ? "not yet computed" : show(list[n]));
    const about = [
      () => "It takes no notice of the matrix.",
      () => `Its weight γ is ${value(run.gamma, number)}: ${value(run.exceeding, (k) => k)} of the 12 covariances, the outlined block, exceed the threshold. The penalty is the squared size of that block.`,
      () => "Means and whitening are learned on the way; what the machine learns couples the units again.",
      () => "It needs no diagonal: it divides by the whole matrix.",
    ][state.method]();
    const name = METHODS[state.method].text;
    return `${name[0].toUpperCase()}${name.slice(1)}, step ${n}: ${value(run.share, percent)} of the matrix (by squares) lies off its diagonal, `
      + `${percent(run.share[0])} at the start; log-likelihood ${value(run.likelihood, number)} nats, the best is −1.39. ${about}`;
  };

  // ---- Controls.

  const change = (key) => (x) => {
    state[key] = x;
    refresh([key]);
  };
  const controls = {
    gamma: NC.control({ label: "γ at the start", ...LIMITS.gamma, log: true, value: state.gamma, change: change("gamma") }),
    rate: NC.control({ label: "step size", ...LIMITS.rate, log: true, value: state.rate, change: change("rate") }),
    threshold: NC.control({ label: "threshold", ...LIMITS.threshold, log: true, value: state.threshold, change: change("threshold") }),
    eps: NC.control({ label: "ε", ...LIMITS.eps, log: true, value: state.eps, change: change("eps") }),
  };
  controls.gamma.mark([{ value: 1e-5, text: "least" }, { value: 1, text: "most" }]);
  controls.threshold.mark([1e-4, 1e-3, 0.01, 0.1, 0.2].map((value) => ({ value, text: value === 0.01 ? "the paper’s" : "" })));
  controls.eps.mark([{ value: 0.01, text: "ridge" }]);
  const clock = NC.clock({
    length: STEPS,
    hint: "It learns 1000, 1100, 1110, 1111.",
    show: (n) => {
      state.step = n;
      drawStep(n);
      words.say(told(), quiet);
    },
    reset() {
      Object.assign(state, START);
      Object.entries(controls).forEach(([key, control]) => control.set(state[key]));
      clock.put(START.step);
      refresh(Object.keys(controls));
    },
    link: () => NC.share(words, NC.link("boltzmann", state)),
  });
  const refresh = (keys) => {
    runs.forEach((run, m) => {
      if (keys.some((key) => METHODS[m].heeds.includes(key))) begin(run);
    });
    compute();
  };
  root.append(
    html("div", { class: "nc-panels" }, html("div", {}, map, choice), chart),
    html("div", { class: "nc-controls" }, ...Object.values(controls).map((control) => control.node)),
    clock.node,
    ...words.nodes,
  );
  clock.put(state.step);
  refresh(["rate"]);
  quiet = false;
  if (location.hash.startsWith("#boltzmann_")) root.scrollIntoView({ block: "center" });
  root.nc = { state, refresh, programs, runs, get busy() { return busy(); } };
});
