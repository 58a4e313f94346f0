// Revisiting: four methods walk from one start on the error of an auto-encoder that has two minima.
NC.figure("revisiting.LANDSCAPE", (root, programs) => {
  const { surface, loops, reached, drawn } = programs;
  const METHODS = [
    { name: "newton", text: "Newton", short: "Newton", rate: 1, damping: 1, paper: 1 },
    { name: "natural", text: "natural gradient", short: "natural", rate: 0.1, damping: 0.01, paper: 0.5 },
    { name: "leroux", text: "Le Roux", short: "Le Roux", rate: 1, damping: 1, paper: 1 },
    { name: "steepest", text: "gradient descent", short: "gradient", rate: 0.1, paper: 0.1 },
  ];
  const KEYS = ["newton", "natural", "leroux", "gradient"];
  const PLAIN = 3; // it has no damping
  const START = { method: 1, step: 3, w: -1, b: 3 };
  METHODS.forEach(({ rate, damping }, m) => {
    START[`rate${m}`] = rate;
    if (m !== PLAIN) START[`damping${m}`] = damping;
  });
  const [STEPS, EDGE, REACH, SIDE, BATCH, GRID, CLOSE] = [100, 5, 4.5, 32, 16, 61, 0.5];
  const LEVELS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6];
  const LOOPS = [0.01, 0.03, 0.1, 0.3];
  const { svg, html, set, number } = NC;
  const LIMITS = {
    method: { low: 0, high: METHODS.length - 1, whole: true },
    step: { low: 0, high: STEPS, whole: true },
    w: { low: -REACH, high: REACH },
    b: { low: -REACH, high: REACH },
  };
  const [RATE, DAMPING] = [{ low: 0.01, high: 2 }, { low: 1e-4, high: 10 }];
  for (const key of Object.keys(START)) {
    if (key.startsWith("rate")) LIMITS[key] = RATE;
    if (key.startsWith("damping")) LIMITS[key] = DAMPING;
  }
  const state = NC.linked("revisiting", START, LIMITS);
  const rateOf = (m) => state[`rate${m}`];
  const setting = (m) => (m === PLAIN ? [rateOf(m)] : [rateOf(m), state[`damping${m}`]]);

  // ---- What the library computes: paths, loops, and where each start of a basin leads.

  const paths = METHODS.map(() => null);
  const walk = (m) => {
    const path = { w: [], b: [], loss: [], kl: [] };
    let theta = Float64Array.of(state.w, state.b);
    for (let k = 0; k <= STEPS; k++) {
      const [next, [loss], [kl]] = programs[KEYS[m]](theta, ...setting(m));
      path.w.push(theta[0]);
      path.b.push(theta[1]);
      path.loss.push(loss);
      path.kl.push(kl);
      theta = next;
    }
    paths[m] = path;
  };
  const line = Array.from({ length: GRID }, (_, k) => EDGE * ((2 * k) / (GRID - 1) - 1));
  const rows = line.map((w) => surface(line.flatMap((b) => [w, b])));
  const heights = rows.flatMap(([, heights]) => [...heights]);
  const divergences = (w, b) => rows.flatMap(([outputs]) => [...loops(outputs, [w, b])[0]]);

  const [stored, wells, [lowest, other]] = drawn();
  const before = (m) => Array.from(stored.subarray(m * SIDE * SIDE, (m + 1) * SIDE * SIDE));
  const basins = METHODS.map((_, m) => before(m));
  const middle = (k) => EDGE * ((2 * k + 1) / SIDE - 1);
  // First every other start of every other row, each for its neighbours too; then those between.
  const passes = [[0, 0], [1, 1], [0, 1], [1, 0]].flatMap(([down, right]) =>
    Array.from({ length: BATCH }, (_, i) => ({ row: 2 * i + down, right, coarse: !down && !right })));
  const left = METHODS.map(() => []); // of the passes, for a method at other settings than those stored
  const explore = (m, { row, right, coarse }) => {
    const columns = Array.from({ length: BATCH }, (_, i) => 2 * i + right);
    let theta = columns.flatMap((column) => [middle(row), middle(column)]);
    for (let k = 0; k < STEPS; k++) [theta] = programs[`many ${KEYS[m]}`](theta, ...setting(m));
    const [ends] = reached(theta);
    columns.forEach((column, i) => {
      for (const [down, aside] of coarse ? [[0, 0], [0, 1], [1, 0], [1, 1]] : [[0, 0]]) {
        basins[m][(row + down) * SIDE + column + aside] = ends[i];
      }
    });
  };

  // What is asked for last comes first: the chosen path at once, then the others, the loops, the basin.
  let [waiting, shown] = [[], null];
  const work = (time) => {
    const end = performance.now() + time;
    const late = () => performance.now() > end;
    while (waiting.length && !late()) walk(waiting.shift());
    if (!late() && shown !== mark()) drawLoops();
    for (const m of order()) {
      const many = left[m].length;
      while (left[m].length && !late()) explore(m, left[m].shift());
      if (left[m].length < many) drawBasin(m);
    }
    return !busy();
  };
  const compute = NC.frames(work, () => drawPaths(!waiting.length));
  const busy = () => waiting.length > 0 || left.some((passes) => passes.length) || shown !== mark();
  const mark = () => `${here()}`;
  const here = () => {
    const [path, n] = [paths[state.method], clock.now];
    return [path.w[n], path.b[n]];
  };

  // ---- The landscape.

  const FRAME = { left: 24, right: 332, top: 22, bottom: 330 };
  const UNIT = (FRAME.right - FRAME.left) / (2 * EDGE);
  const pixel = (w, b) => [FRAME.left + UNIT * (b + EDGE), FRAME.bottom - UNIT * (w + EDGE)];
  const map = NC.picture("The error for each w and b, with the paths, the start and the two minima", 340, 348);
  const inside = NC.box(map, "nc-landscape", FRAME);
  const part = (parent, kind) => {
    const node = svg("path", { class: kind });
    parent.append(node);
    return node;
  };
  const ground = svg("g", { "shape-rendering": "crispEdges" });
  inside.append(ground);
  const areas = [part(ground, "nc-better"), part(ground, "nc-worse")];
  const onGrid = (x, y) => pixel(EDGE * ((2 * y) / (GRID - 1) - 1), EDGE * ((2 * x) / (GRID - 1) - 1));
  const contours = (values, levels) => levels.map((level) => NC.contour(values, GRID, level, onGrid)).join("");
  set(part(inside, "nc-heights"), { d: contours(heights, LEVELS.map(Math.log)) });
  const equal = part(inside, "nc-level");
  const parts = (kind) => METHODS.map(({ name }) => part(inside, `nc-${kind} nc-${name}`));
  const [walks, marks, stops] = [parts("line"), parts("dots"), parts("now")];
  map.append(inside);
  const legend = svg("g");
  map.append(legend);
  for (const [x, kind, words] of [[24, "better", "to the better minimum"], [184, "worse", "to the other"], [278, "neither", "neither"]]) {
    legend.append(svg("rect", { x, y: 4.5, width: 11, height: 11, class: `nc-${kind}` }));
    NC.text(map, x + 15, 14.5, words, "start", "nc-axis");
  }
  for (const x of [-4, -2, 0, 2, 4]) {
    const [across, down] = pixel(x, x);
    NC.text(map, across, FRAME.bottom + 14, number(x).replace(".00", ""), "middle", "nc-axis");
    NC.text(map, FRAME.left - 4, down + 4, number(x).replace(".00", ""), "end", "nc-axis");
  }
  NC.text(map, FRAME.right - 2, FRAME.bottom + 14, "b", "end", "nc-axis");
  NC.text(map, FRAME.left - 4, FRAME.top + 10, "w", "end", "nc-axis");
  const [x, y] = [FRAME.left + 5, FRAME.bottom - 6];
  NC.text(map, x, y, `loops: KL ${LOOPS.join(", ")} nats`, "start", "nc-axis");
  const key = [x, y - 12, x + 178, y + 4];
  const spots = [0, 1].map((k) => pixel(wells[2 * k], wells[2 * k + 1]));
  spots.forEach((spot, k) => {
    NC.star(map, spot);
    NC.text(map, spot[0] - 12, spot[1] + 5, number([lowest, other][k]), "end", "nc-label nc-height");
  });
  const names = METHODS.map(({ name }) => NC.text(map, 0, 0, "", "start", `nc-label nc-${name}`));
  const place = NC.labels([FRAME.left + 4, FRAME.top + 4, FRAME.right - 2, FRAME.bottom - 4], 0.3);
  const handle = NC.handle(map, {
    label: "Start",
    move(x, y) {
      state.b = NC.within(LIMITS.b, (x - FRAME.left) / UNIT - EDGE);
      state.w = NC.within(LIMITS.w, (FRAME.bottom - y) / UNIT - EDGE);
      refresh();
    },
  });
  // The step under the pointer.
  map.onpointermove = (event) => {
    if (event.buttons || event.pointerType === "touch") return;
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    const gaps = points(state.method).map(([u, v]) => Math.hypot(u - x, v - y));
    const nearest = gaps.indexOf(Math.min(...gaps));
    if (gaps[nearest] < 10 && nearest !== clock.now) clock.put(nearest, true);
  };

  const points = (m) => {
    const all = paths[m].w.map((w, k) => pixel(w, paths[m].b[k]));
    const end = all.findIndex(([x, y]) => !(Math.abs(x) < 1e4 && Math.abs(y) < 1e4));
    return end < 0 ? all : all.slice(0, end);
  };
  const order = () => [state.method, ...[1, 0, 2, 3].filter((m) => m !== state.method)];
  const areaOf = (values, kind, size, x, y) => {
    let d = "";
    for (let row = 0; row < SIDE; row++)
      for (let column = 0; column < SIDE; column++) {
        let n = 0;
        while (column + n < SIDE && values[row * SIDE + column + n] === kind) n++;
        if (n) d += `M${(x + column * size).toFixed(2)} ${(y - (row + 1) * size).toFixed(2)}h${(n * size).toFixed(2)}v${size}h${(-n * size).toFixed(2)}z`;
        column += n;
      }
    return d;
  };
  const drawBasin = (m) => {
    [0, 1].forEach((kind) => set(small[m].areas[kind], { d: areaOf(basins[m], kind, 2, 0, 2 * SIDE) }));
    if (m !== state.method) return;
    const size = (FRAME.right - FRAME.left) / SIDE;
    [0, 1].forEach((kind) => set(areas[kind], { d: areaOf(basins[m], kind, size, FRAME.left, FRAME.bottom) }));
    for (const node of [ground, legend]) set(node, { class: `nc-${METHODS[m].name}` });
  };
  const drawLoops = () => {
    const [w, b] = here();
    shown = mark();
    const there = Math.abs(w) < 2 * EDGE && Math.abs(b) < 2 * EDGE;
    set(equal, { d: there ? contours(divergences(w, b), LOOPS.map(Math.sqrt)) : "" });
  };

  // ---- Error and divergence of each step, on one clock.

  const chart = NC.picture("The error, and the divergence of each step, against the number of steps", 340, 262);
  const WIDE = { left: 46, right: 326 };
  const { across, at } = NC.steps(WIDE, STEPS);
  const HIGH = NC.part(chart, "nc-error", { ...WIDE, top: 22, bottom: 112, least: -2, most: 2, log: true }, METHODS);
  const LOW = NC.part(chart, "nc-moved", { ...WIDE, top: 144, bottom: 236, least: -8, most: 2, log: true }, METHODS, 18);
  const scale = svg("g", { "aria-hidden": "true" });
  chart.append(scale);
  const label = (x, y, words, anchor) => NC.text(scale, x, y, words, anchor, "nc-axis");
  for (const [y, words] of [[0.01, "0.01"], [0.1, "0.1"], [1, "1"], [10, "10"], [100, "100"]]) label(WIDE.left - 5, HIGH.down(y) + 4, words, "end");
  for (const [y, words] of [[1e-8, "10⁻⁸"], [1e-6, "10⁻⁶"], [1e-4, "10⁻⁴"], [0.01, "0.01"], [1, "1"], [100, "100"]]) label(WIDE.left - 5, LOW.down(y) + 4, words, "end");
  for (const k of [0, 1, 3, 10, 30, 100]) label(across(k), 259, k, "middle");
  label(WIDE.left - 12, 259, "step", "end");
  NC.text(chart, WIDE.left, 14, "Error", "start", "nc-title");
  NC.text(chart, WIDE.left, 136, "KL divergence of a step, nats", "start", "nc-title");
  const cursor = part(chart, "nc-target");
  const scrub = NC.scrub(chart, at, STEPS, () => clock);

  // ---- Both.

  const drawPaths = (finished) => {
    const inMap = [];
    METHODS.forEach(({ name, text }, m) => {
      if (!paths[m]) return;
      const spots = points(m);
      set(walks[m], { d: NC.line(spots), class: `nc-line nc-${name}${m === state.method ? " nc-chosen" : ""}` });
      set(marks[m], { d: NC.dots(spots) });
      inMap.push({ name, text, points: spots.slice(0, 40), m });
    });
    NC.front(inside, ...order().reverse().flatMap((m) => [walks[m], marks[m]]), ...stops);
    handle.put(...pixel(state.w, state.b));
    set(handle.node, { "aria-label": `Start w ${number(state.w)}, b ${number(state.b)}: drag it, or press arrow keys` });
    for (const [part, key] of [[HIGH, "loss"], [LOW, "kl"]]) {
      const curves = METHODS.map(({ name, text }, m) => ({ name, text, points: curve(part, paths[m]?.[key]) }));
      curves.forEach(({ name, points }, m) =>
        set(part.lines[m], { d: NC.line(points), class: `nc-line nc-${name}${m === state.method ? " nc-chosen" : ""}` }));
      NC.front(part.box, part.lines[state.method], ...part.dots);
      if (finished) part.name(order(), curves);
    }
    if (finished) { // names wait until the lines stand still
      const [x, y] = pixel(state.w, state.b);
      const beside = ([u, v]) => [u - 52, v - 9, u + 9, v + 9];
      inMap.sort((one, two) => order().indexOf(one.m) - order().indexOf(two.m));
      const free = place(inMap, [[x - 14, y - 14, x + 14, y + 14], key, ...spots.map(beside)]);
      inMap.forEach(({ m, text }, k) => NC.label(names[m], text, free[k]));
    }
    drawStep(clock.now);
  };
  const curve = (part, values = []) => values
    .map((y, k) => [across(k), part.down(y)])
    .filter(([, y]) => Number.isFinite(y))
    .map(([x, y]) => [x, NC.within({ low: -1e3, high: 1e3 }, y)]);
  const drawStep = (n) => {
    set(cursor, { d: `M${across(n).toFixed(1)} ${HIGH.top}V${LOW.bottom}` });
    scrub.put(n, across(n), LOW.bottom);
    METHODS.forEach((_, m) => {
      if (!paths[m]) return;
      set(stops[m], { d: NC.dots(points(m).slice(n, n + 1)) });
      for (const [part, key] of [[HIGH, "loss"], [LOW, "kl"]]) {
        const y = part.down(paths[m][key][n]);
        set(part.dots[m], { d: Number.isFinite(y) ? NC.dots([[across(n), y]]) : "" });
      }
    });
    words.say(told(), quiet);
  };

  // ---- Which method: its basins, small.

  const choice = html("fieldset", { class: "nc-choice" }, html("legend", { class: "nc-heard" }, "Method"));
  const small = METHODS.map(({ name, text, short }, m) => {
    const icon = svg("svg", { viewBox: `0 0 ${2 * SIDE} ${2 * SIDE}`, "aria-hidden": "true", "shape-rendering": "crispEdges" });
    const input = html("input", { type: "radio", name: "nc-method", "aria-label": text });
    input.onchange = () => {
      state.method = m;
      choose();
      refresh();
    };
    choice.append(html("label", { class: `nc-${name}` }, input, icon, html("span", {}, short)));
    return { input, areas: [part(icon, "nc-better"), part(icon, "nc-worse")] };
  });

  // ---- Words.

  const words = NC.words();
  let quiet = true;
  const where = ({ w, b }) => {
    const gaps = [0, 1].map((k) => Math.hypot(w[STEPS] - wells[2 * k], b[STEPS] - wells[2 * k + 1]));
    return gaps[0] < CLOSE ? "the better minimum" : gaps[1] < CLOSE ? "the other minimum" : "neither";
  };
  const told = () => {
    const [n, path, name] = [clock.now, paths[state.method], METHODS[state.method].text];
    if (!path) return "";
    const ends = {};
    METHODS.forEach(({ text }, m) => paths[m] && (ends[where(paths[m])] ||= []).push(text));
    const list = (all) => (all.length > 1 ? `${all.slice(0, -1).join(", ")} and ${all.at(-1)}` : all[0]);
    const found = ["the better minimum", "the other minimum", "neither"].filter((end) => ends[end]);
    const reach = (end) => (ends[end].length > 1 ? " reach" : " reaches");
    const said = found.map((end, k) => `${list(ends[end])}${k ? "" : reach(end)} ${end}`).join(", ");
    const step = Number.isFinite(path.loss[n])
      ? `error ${number(path.loss[n])}; the next step changes the model by ${number(path.kl[n])} nats`
      : "it has left all bounds";
    return `From w = ${number(state.w)}, b = ${number(state.b)} in 100 steps ${said}. ${name[0].toUpperCase()}${name.slice(1)}, step ${n}: ${step}.`;
  };

  // ---- Controls.

  const change = (key) => (x) => {
    state[`${key}${state.method}`] = x;
    left[state.method] = passes.slice();
    refresh([state.method]);
  };
  const controls = {
    rate: NC.control({ label: "step size", ...RATE, log: true, value: 1, change: change("rate") }),
    damping: NC.control({ label: "damping", ...DAMPING, log: true, value: 1, change: change("damping") }),
  };
  const choose = () => {
    const m = state.method;
    for (const [key, control] of Object.entries(controls)) {
      if (!(key + m in state)) continue;
      control.set(state[key + m]);
      control.mark([{ value: key === "rate" ? METHODS[m].paper : METHODS[m].damping, text: "the paper’s" }]);
    }
    controls.damping.node.style.visibility = m === PLAIN ? "hidden" : "";
    small.forEach(({ input }, k) => (input.checked = k === m));
    drawBasin(m);
  };
  const clock = NC.clock({
    length: STEPS,
    hint: "Drag the dot.",
    show(n) {
      state.step = n;
      if (!paths[state.method]) return;
      drawStep(n);
      compute();
    },
    reset() {
      Object.assign(state, START);
      METHODS.forEach((_, m) => {
        [basins[m], left[m]] = [before(m), []];
        drawBasin(m);
      });
      choose();
      clock.put(START.step, true);
      refresh();
    },
    link: () => NC.share(words, NC.link("revisiting", state)),
  });
  // Compute the paths of some methods, all if none is named; the chosen one at once.
  const refresh = (methods) => {
    waiting = order().filter((m) => !methods || methods.includes(m) || waiting.includes(m));
    while (waiting.includes(state.method)) walk(waiting.shift());
    shown = null;
    compute();
  };
  root.append(
    html("div", { class: "nc-panels" }, map, html("div", {}, chart, choice)),
    html("div", { class: "nc-controls" }, ...Object.values(controls).map((control) => control.node)),
    clock.node,
    ...words.nodes,
  );
  clock.put(state.step, true);
  METHODS.forEach((_, m) => {
    if (`${setting(m)}` !== `${[METHODS[m].rate, METHODS[m].damping].slice(0, m === PLAIN ? 1 : 2)}`) left[m] = passes.slice();
    drawBasin(m);
  });
  choose();
  refresh();
  quiet = false;
  if (location.hash.startsWith("#revisiting_")) root.scrollIntoView({ block: "center" });
  root.nc = { state, refresh, programs, paths, basins, get busy() { return busy(); } };
});
