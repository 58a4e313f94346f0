// PRONG: a small network learns by gradient descent and by Algorithm 1; what its second layer is fed goes round at each
// whitening, and skews until the next.
NC.figure("prong.LAYER", (root, programs) => {
  const { data, whiten, update, look } = programs;
  const START = { T: 20, rate: 0.3, eps: 0.01, correlation: 0.9, across: 0, up: 0, step: 20 };
  const [UPDATES, DRAGGED, CENTRE] = [200, 26, [0.8, 0.4]];
  const METHODS = [{ name: "steepest", text: "plain gradient" }, { name: "natural", text: "PRONG" }];
  const PRONG = 1;
  const LEAST = -0.95 * Math.log(0.95) - 0.05 * Math.log(0.05);
  const { svg, html, set, write, number } = NC;
  const LIMITS = {
    T: { low: 1, high: UPDATES, whole: true },
    rate: { low: 0.01, high: 3 },
    eps: { low: 1e-4, high: 1 },
    correlation: { low: 0, high: 0.98 },
    across: { low: -3, high: 3 },
    up: { low: -3, high: 3 },
    step: { low: 0, high: UPDATES, whole: true },
  };
  const state = NC.linked("prong", START, LIMITS);

  // ---- What the library computes: a whitening, an update, and a look at the network before it.

  let [points, labels] = data(state.correlation, state.across, state.up);
  const [omega, phi] = programs.start();
  const runs = METHODS.map(() => ({ done: 0, seen: [], before: [], changed: [] }));
  const seen = (now) => {
    const [[loss], [condition], [exact], z, mean, spread, outputs] = look(now.omega, now.phi, points, labels);
    return { loss, condition, exact, z, mean, spread, outputs };
  };
  const begin = (run) => {
    run.done = 0;
    run.now = { omega, phi };
  };
  // What is not computed yet keeps the values of the settings before.
  const advance = (m) => {
    const [run, k] = [runs[m], runs[m].done];
    if (m === PRONG && k % state.T === 0) {
      run.before[k] = seen(run.now);
      const [after, coefficients] = whiten(run.now.omega, run.now.phi, points, state.eps);
      run.now = { omega: after, phi: coefficients };
    }
    run.seen[k] = seen(run.now);
    if (m === PRONG && k % state.T === 0) {
      const was = run.before[k].outputs;
      run.changed[k] = run.seen[k].outputs.reduce((most, r, i) => Math.max(most, Math.abs(r - was[i])), 0);
    }
    [run.now.omega] = update(run.now.omega, run.now.phi, points, labels, state.rate);
    run.done = k + 1;
  };
  const busy = () => runs.some(({ done }) => done <= UPDATES);
  const FIRST = 5; // updates that an answer shows however slow the machine is
  const work = (time) => {
    const end = performance.now() + time;
    while (busy() && (runs[0].done < FIRST || performance.now() < end)) {
      runs.forEach((run, m) => {
        if (run.done <= UPDATES) advance(m);
      });
    }
    return !busy();
  };
  const compute = NC.frames(work, (finished) => draw(finished));
  const last = (n) => n - (n % state.T); // the last whitening

  // ---- Planes of points: the data, and what the second layer is fed.

  const map = NC.picture("What the second layer is fed, and the data", 340, 318);
  const text = (drawing, x, y, words, anchor = "start", kind = "nc-axis") => NC.text(drawing, x, y, words, anchor, kind);
  const plane = (id, kind, left, top, size, reach, size2) => {
    const box = NC.box(map, id, { left, top, right: left + size, bottom: top + size });
    const unit = size / 2 / reach;
    const group = svg("g", { class: kind });
    box.append(group);
    map.append(box);
    const spots = Array.from(labels, (p) => svg("circle", { r: size2, class: p > 0.5 ? "nc-spot nc-one" : "nc-spot" }));
    const self = {
      group,
      box,
      pixel: ([x, y]) => [left + size / 2 + unit * x, top + size / 2 - unit * y],
      point: (x, y) => [(x - left - size / 2) / unit, (top + size / 2 - y) / unit],
      ring: (mean, spread) => NC.line(Array.from({ length: 61 }, (_, k) => {
        const [u, v] = [2 * Math.cos((k * Math.PI) / 30), 2 * Math.sin((k * Math.PI) / 30)];
        return self.pixel([mean[0] + spread[0] * u + spread[1] * v, mean[1] + spread[2] * u + spread[3] * v]);
      })),
      put(z) {
        spots.forEach((spot, k) => {
          const [x, y] = self.pixel([z[2 * k], z[2 * k + 1]]);
          if (Number.isFinite(x + y)) set(spot, { cx: x.toFixed(1), cy: y.toFixed(1) });
        });
      },
      follow: () => spots[DRAGGED].classList.add("nc-followed"),
    };
    self.path = (kinds) => {
      const node = svg("path", { class: kinds });
      group.append(node);
      return node;
    };
    self.fill = () => group.append(...spots);
    return self;
  };
  const [UNIT, IDENTITY] = [[0, 0], [1, 0, 0, 1]];
  const main = plane("nc-fed", "nc-natural", 1, 22, 220, 5.5, 3.5);
  main.path("nc-target").setAttribute("d", main.ring(UNIT, IDENTITY));
  const ghost = main.path("nc-ghost");
  const outline = main.path("nc-line nc-natural");
  const side = plane("nc-fed-plain", "nc-steepest", 247, 150, 92, 1.7, 2);
  const sideOutline = side.path("nc-line nc-steepest nc-thin");
  const sheet = plane("nc-data", "", 247, 22, 92, 3.4, 2);
  [main, side, sheet].forEach((part) => part.fill());
  [main, side].forEach((part) => part.follow());
  text(map, 1, 14, "PRONG: what layer 2 is fed", "start", "nc-title");
  text(map, 339, 14, "Data", "end", "nc-title");
  text(map, 339, 127, "drag the ring", "end");
  text(map, 339, 144, "Plain gradient", "end", "nc-title");
  text(map, 1, 259, "Ellipses: two standard deviations. Dotted: white.");
  text(map, 1, 273, "Grey: before the last whitening.");
  const big = text(map, 1, 309, "", "start", "nc-share");
  text(map, 82, 299, "condition number of the layer,");
  const other = text(map, 82, 313, "");
  const limited = (x) => NC.within(LIMITS.up, x);
  const home = (k) => points[2 * DRAGGED + k] - [state.across, state.up][k];
  const ring = NC.handle(map, {
    label: "Point",
    kind: "nc-cell",
    step: 4,
    move(x, y) {
      const [u, v] = sheet.point(x, y);
      [state.across, state.up] = [u, v].map((w, k) => limited(w) + CENTRE[k] - home(k));
      refresh();
    },
  });
  const drawSheet = () => {
    const off = points.map((x, k) => x - CENTRE[k % 2]);
    sheet.put(off);
    const at = [off[2 * DRAGGED], off[2 * DRAGGED + 1]];
    ring.put(...sheet.pixel(at));
    set(ring.node, { "aria-label": `Point ${number(at[0] + CENTRE[0])}, ${number(at[1] + CENTRE[1])}: drag it, or press arrow keys` });
  };

  // ---- Loss and condition number, against updates.

  const chart = NC.picture("Loss and condition number against the number of updates", 340, 352);
  const WIDE = { left: 51, right: 326 };
  const { left, right } = WIDE;
  const BEAT = 160; // the row of whitenings
  const across = (k) => left + (k / UPDATES) * (right - left);
  const HIGH = NC.part(chart, "nc-part-0", { ...WIDE, top: 24, bottom: 146, least: 0.15, most: 0.75 }, METHODS);
  const LOW = NC.part(chart, "nc-part-1", { ...WIDE, top: 196, bottom: 328, least: 0, most: 3, log: true }, METHODS);
  const PARTS = [[HIGH, "loss"], [LOW, "condition"]];
  const scale = svg("g", { "aria-hidden": "true" });
  chart.append(scale);
  text(chart, left, 16, "Loss, nats", "start", "nc-title");
  text(chart, left, 188, "Condition number", "start", "nc-title");
  text(chart, right, 188, "ticks: whitenings", "end");
  for (const y of [0.4, 0.6]) text(scale, left - 5, HIGH.down(y) + 4, y, "end");
  text(scale, left - 5, HIGH.down(LEAST) + 4, "least", "end");
  for (const y of [0, 1, 2, 3]) text(scale, left - 5, LOW.down(10 ** y) + 4, 10 ** y, "end");
  for (const k of [0, 50, 100, 150, 200]) text(scale, across(k), 345, k, "middle");
  text(chart, left - 8, 345, "update", "end");
  HIGH.box.prepend(svg("path", { class: "nc-target", d: `M${left} ${HIGH.down(LEAST)}H${right}` }));
  const beats = svg("path", { class: "nc-beat nc-natural" });
  const cursor = svg("path", { class: "nc-target" });
  chart.append(beats, cursor);
  const scrub = NC.scrub(chart, (x) => Math.round((UPDATES * (x - left)) / (right - left)), UPDATES, () => clock, "update");

  // A whitening has two places in a curve: before and after it.
  const curve = (part, key, run) => run.seen.slice(0, UPDATES + 1)
    .flatMap((now, k) => [...(k && k % state.T === 0 && run.before[k] ? [[k, run.before[k]]] : []), [k, now]])
    .map(([k, now]) => [across(k), part.down(now[key])])
    .filter(([, y]) => Number.isFinite(y))
    .map(([x, y]) => [x, Math.max(-1e4, y)]);
  const drawLines = (finished) => {
    const times = Array.from({ length: Math.floor(UPDATES / state.T) + 1 }, (_, k) => k * state.T);
    set(beats, { d: times.map((k) => `M${across(k).toFixed(1)} ${BEAT - 5}v10`).join("") });
    PARTS.forEach(([part, key]) => {
      const curves = METHODS.map(({ name, text: words }, m) => ({ name, text: words, points: curve(part, key, runs[m]) }));
      curves.forEach(({ points: line }, m) => set(part.lines[m], { d: NC.line(line) }));
      if (finished) part.name([0, PRONG], curves); // names wait until the lines stand still
    });
  };
  const drawStep = (n) => {
    const now = runs.map((run) => run.seen[n]);
    set(cursor, { d: `M${across(n).toFixed(1)} ${HIGH.top}V${LOW.bottom}` });
    scrub.put(n, across(n), BEAT);
    PARTS.forEach(([part, key]) => METHODS.forEach((_, m) => {
      const y = now[m] ? part.down(now[m][key]) : NaN;
      set(part.dots[m], { d: Number.isFinite(y) ? NC.dots([[across(n), y]]) : "" });
    }));
    if (!now[0] || !now[PRONG]) return;
    main.put(now[PRONG].z);
    side.put(now[0].z);
    set(outline, { d: main.ring(now[PRONG].mean, now[PRONG].spread) });
    set(sideOutline, { d: side.ring(now[0].mean, now[0].spread) });
    const was = runs[PRONG].before[last(n)];
    set(ghost, { d: was ? main.ring(was.mean, was.spread) : "" });
    write(big, brief(now[PRONG].condition));
    write(other, `with the plain gradient ${brief(now[0].condition)}`);
  };
  const brief = (x) => (x < 1e4 ? number(x) : Number.isFinite(x) ? "over 10⁴" : "–");
  const draw = (finished) => {
    drawSheet();
    drawLines(finished);
    drawStep(clock.now);
    words.say(told(), quiet);
  };

  // ---- Words.

  const words = NC.words();
  let quiet = true;
  const told = () => {
    const n = clock.now;
    const [plain, now] = runs.map((run) => run.seen[n]);
    if (!plain || !now) return "";
    const age = n - last(n);
    const when = age === 0 ? "just whitened" : `${age} after the last whitening`;
    const before = age === 0 ? `before it ${brief(runs[PRONG].before[n].condition)}; ` : "";
    const change = Math.max(...runs[PRONG].changed.filter((_, k) => k <= n));
    return `Update ${n}, ${when}: condition number ${brief(now.condition)} (${before}plain gradient ${brief(plain.condition)}), `
      + `loss ${number(now.loss)} (plain gradient ${number(plain.loss)}). `
      + `Exactly, not by Eq. 5, the condition numbers are ${brief(now.exact)} and ${brief(plain.exact)}. `
      + (change < 1e-10 ? "No whitening so far has changed an output by more than rounding." : `A whitening has changed an output by ${number(change)}.`);
  };

  // ---- Controls.

  const change = (key) => (x) => {
    state[key] = x;
    refresh();
  };
  const controls = {
    T: NC.control({ label: "T, updates", ...LIMITS.T, log: true, value: state.T, change: change("T") }),
    rate: NC.control({ label: "step size", ...LIMITS.rate, log: true, value: state.rate, change: change("rate") }),
    eps: NC.control({ label: "ε", ...LIMITS.eps, log: true, value: state.eps, change: change("eps") }),
    correlation: NC.control({ label: "correlation", ...LIMITS.correlation, value: state.correlation, change: change("correlation") }),
  };
  controls.T.mark([{ value: 1, text: "always" }, { value: UPDATES, text: "once" }]);
  const clock = NC.clock({
    length: UPDATES,
    unit: "update",
    pace: (n) => (state.T > 4 && Math.floor(n) % state.T === 0 ? 3 : 16), // a whitening is a beat
    hint: "Filled points have the other label.",
    show: (n) => {
      if (n !== state.step) main.group.classList.toggle("nc-glide", n % state.T === 0 && n === state.step + 1);
      state.step = n;
      drawStep(n);
      words.say(told(), quiet);
    },
    reset() {
      Object.assign(state, START);
      Object.entries(controls).forEach(([key, control]) => control.set(state[key]));
      clock.put(START.step);
      refresh();
    },
    link: () => NC.share(words, NC.link("prong", state)),
  });
  const refresh = () => {
    [points, labels] = data(state.correlation, state.across, state.up);
    runs.forEach(begin);
    compute();
  };
  root.append(
    html("div", { class: "nc-panels" }, map, chart),
    html("div", { class: "nc-controls" }, ...Object.values(controls).map((control) => control.node)),
    clock.node,
    ...words.nodes,
  );
  clock.put(state.step);
  refresh();
  quiet = false;
  if (location.hash.startsWith("#prong_")) root.scrollIntoView({ block: "center" });
  root.nc = { state, refresh, programs, runs, get busy() { return busy(); } };
});
