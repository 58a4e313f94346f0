// Foundations: a point on the loss, the steps of equal divergence around it, and two gradients, in two coordinates.
NC.figure("foundations.RULERS", (root, { rulers, reach, valley }) => {
  const START = { v: 1.4, w: 3.6, stretch: 0.6, cost: 1e-4 };
  const [LEFT, RIGHT] = [{ v: 0.9, w: 2.5 }, { v: 2.1, w: 4 }]; // corners of the sheet
  const LIMITS = {
    v: { low: 1, high: 2 },
    w: { low: 2.6, high: 3.9 },
    stretch: { low: 0.25, high: 1.4 },
    cost: { low: 1e-5, high: 3e-4 },
  };
  const [GRID, ROUND, ROUNDS, LENS, UNIT, TOP, BOTTOM] = [33, 36, 3, 5, 165, 26, 273.5];
  const [WIDE, MIDDLE] = [Math.round((RIGHT.v - LEFT.v) * UNIT), (RIGHT.v + LEFT.v) / 2];
  const OTHER = { left: 14, middle: 157, right: 300 };
  const TEACHER = [1.5, 3];
  const LEVELS = [0.3115, 0.3125, 0.3145, 0.318, 0.323, 0.33, 0.34];
  const NAMES = { natural: "natural gradient", gradient: "gradient", other: "gradient in u" };
  const SHORT = { natural: "natural", gradient: "gradient", other: "in u" };
  const ROWS = { gradient: 0, natural: 1, other: 2, "other natural": 3 };
  const { svg, html, set, number } = NC;
  const state = NC.linked("foundations", START, LIMITS);

  // ---- What the library computes.

  let now = null;
  const compute = () => {
    const { v, w, stretch, cost } = state;
    const [steps, [loss, ...losses], [a, b, c, d], gradient] = rulers(v, w, stretch, cost);
    const ellipse = Array.from({ length: ROUND }, (_, k) => {
      const angle = (2 * Math.PI * k) / ROUND;
      return [v + a * Math.cos(angle) + b * Math.sin(angle), w + c * Math.cos(angle) + d * Math.sin(angle)];
    });
    const angle = (k) => Math.atan2(steps[2 * k + 1], steps[2 * k]);
    const turned = (one, two) => {
      const turn = Math.abs(angle(ROWS[one]) - angle(ROWS[two])) * (180 / Math.PI);
      return Math.min(turn, 360 - turn);
    };
    const each = (value) => Object.fromEntries(Object.keys(NAMES).map((name) => [name, value(ROWS[name])]));
    now = {
      steps: each((k) => [steps[2 * k], steps[2 * k + 1]]),
      loss,
      falls: each((k) => loss - losses[k]),
      ellipse,
      turned: { gradient: turned("gradient", "other"), natural: turned("natural", "other natural") },
      lowest: !(Math.hypot(...gradient) > 1e-9),
    };
  };
  // The exact curve takes longest, and follows in the frame after the answer.
  let waiting = 0;
  const settle = () => {
    waiting = 0;
    let equal = Float64Array.from(now.ellipse.flat());
    for (let k = 0; k < ROUNDS; k++) [equal] = reach(state.v, state.w, state.cost, equal);
    now.equal = now.ellipse.map((_, k) => [equal[2 * k], equal[2 * k + 1]]);
    for (const place of [written, other]) place.settle();
  };
  const axis = (low, high, count) => Array.from({ length: count }, (_, k) => low + ((high - low) * k) / (count - 1));
  const [rows, columns] = [axis(LEFT.w, RIGHT.w, GRID), axis(LEFT.v, RIGHT.v, GRID)];
  const [heights] = valley(rows.flatMap((w) => columns.flatMap((v) => [v, w])));

  // ---- A sheet: the plane of the parameters in one pair of coordinates. Steps and ellipse are drawn LENS times as large.

  const sheet = (name, own, left, right, texts) => {
    const places = Object.keys(texts);
    const drawing = NC.picture(name, right + 6, 300);
    const window = NC.box(drawing, `nc-${own}`, { left, right, top: TOP, bottom: BOTTOM });
    const part = (kind) => {
      const node = svg("path", { class: kind });
      window.append(node);
      return node;
    };
    const clip = drawing.querySelector("clipPath rect");
    const ground = part("nc-sheet");
    const [grid, contours, level] = [part("nc-grid"), part("nc-valley"), part("nc-level")];
    const [truth, ellipse, corner] = [part("nc-line nc-plane"), part("nc-line nc-truth"), part("nc-corner")];
    const arrows = Object.fromEntries(places.map((key) => [key, part(`nc-line nc-${key}`)]));
    const heads = Object.fromEntries(places.map((key) => [key, part(`nc-line nc-head nc-${key}`)]));
    drawing.append(window);
    const title = NC.text(drawing, left, 15, "", "start", "nc-title");
    const star = NC.star(drawing, [0, 0]);
    const lowest = NC.text(drawing, 0, 0, "lowest loss", "middle", "nc-axis");
    const labels = Object.fromEntries([...places, "truth"].map((key) => [key, NC.text(drawing, 0, 0, "", "start", `nc-label nc-${key}`)]));
    const ticks = [1, 1.5, 2].map((v) => [v, NC.text(drawing, 0, 289, "", "middle", "nc-axis")]);
    const place = NC.labels([left + 2, TOP + 2, right - 2, BOTTOM - 2], 1);
    const centre = (left + right) / 2;
    let unit = 1;
    const pixel = ([v, w]) => [centre + unit * (v - MIDDLE) * UNIT, BOTTOM - (w - LEFT.w) * UNIT];
    const loop = (points) => `${NC.line(points.map(pixel))}Z`;
    const drawGround = () => {
      set(ground, { d: loop([[LEFT.v, LEFT.w], [RIGHT.v, LEFT.w], [RIGHT.v, RIGHT.w], [LEFT.v, RIGHT.w]]) });
      const lines = [...axis(1, 2, 5).map((v) => [[v, LEFT.w], [v, RIGHT.w]]), ...axis(2.5, 4, 7).map((w) => [[LEFT.v, w], [RIGHT.v, w]])];
      set(clip, { x: centre - (unit * WIDE + 1) / 2, width: unit * WIDE + 1 });
      set(grid, { d: lines.map((line) => NC.line(line.map(pixel))).join("") });
      set(contours, { d: LEVELS.map(contour).join("") });
      const [x, y] = pixel(TEACHER);
      set(star, { transform: `translate(${x} ${y})` });
      set(lowest, { x, y: y + 19 });
      for (const [v, node] of ticks) {
        set(node, { x: pixel([v, 0])[0] });
        NC.write(node, v === 1.5 && unit < 0.6 ? "" : number(unit * v).replace(/\.?0+$/, ""));
      }
    };
    const contour = (value) => NC.contour(heights, GRID, value, (x, y) => pixel([
      LEFT.v + ((RIGHT.v - LEFT.v) * x) / (GRID - 1), LEFT.w + ((RIGHT.w - LEFT.w) * y) / (GRID - 1),
    ]));
    const inside = ([v, w]) => v > LEFT.v && v < RIGHT.v && w > LEFT.w && w < RIGHT.w;
    const larger = ([v, w]) => [state.v + LENS * (v - state.v), state.w + LENS * (w - state.w)];
    const arrow = (key) => {
      const [dv, dw] = now.steps[key];
      const [[x, y], [p, q]] = [[state.v, state.w], larger([state.v + dv, state.w + dw])].map(pixel);
      const [angle, size] = [Math.atan2(q - y, p - x), 9];
      const wing = (turn) => [p - size * Math.cos(angle + turn), q - size * Math.sin(angle + turn)];
      const square = [[0, 1], [1, 1], [1, 0]].map(([along, aside]) => [
        x + 15 * (along * Math.cos(angle) - aside * Math.sin(angle)), y + 15 * (along * Math.sin(angle) + aside * Math.cos(angle)),
      ]);
      return { ends: [[x, y], [p, q]], head: NC.line([wing(0.45), [p, q], wing(-0.45)]), square };
    };
    return {
      drawing, pixel,
      value: (x, y) => [MIDDLE + (x - centre) / (unit * UNIT), LEFT.w + (BOTTOM - y) / UNIT],
      settle: () => set(truth, { d: loop(now.equal.map(larger)) }),
      draw(stretch, words, obstacles = []) {
        if (stretch !== unit || !ground.hasAttribute("d")) {
          unit = stretch;
          drawGround();
        }
        NC.write(title, words);
        const here = pixel([state.v, state.w]);
        const shown = now.lowest ? [] : places.filter((key) => key !== "other" || state.stretch !== 1 || own === "other");
        const drawn = Object.fromEntries(shown.map((key) => [key, arrow(key)]));
        const rounds = now.ellipse.map(larger);
        set(level, { d: contour(now.loss) });
        set(ellipse, { d: loop(rounds) });
        set(corner, { d: now.lowest ? "" : NC.line(drawn[own].square) });
        for (const key of places) {
          set(arrows[key], { d: drawn[key] ? NC.line(drawn[key].ends) : "" });
          set(heads[key], { d: drawn[key]?.head ?? "" });
        }
        const curves = shown.map((key) => ({ name: key, text: texts[key], points: drawn[key].ends }));
        curves.push({ name: "truth", text: "equal divergence", points: rounds.filter(inside).map(pixel) });
        const [[x, y], [u, w]] = [here, pixel(TEACHER)];
        const spots = place(curves, [[x - 12, y - 12, x + 12, y + 12], [u - 33, w - 9, u + 33, w + 22], ...obstacles]);
        for (const key of [...places, "truth"]) {
          const k = curves.findIndex((curve) => curve.name === key);
          NC.label(labels[key], k < 0 ? "" : curves[k].text, k < 0 ? null : spots[k]);
        }
        return here;
      },
    };
  };
  const written = sheet("The loss over v and w, the point, and a step of each rule", "gradient", 30, 30 + WIDE, SHORT);
  const other = sheet("The same over u and w: the sheet is stretched", "other", OTHER.left, OTHER.right, { natural: NAMES.natural, other: NAMES.other });
  for (const w of [2.5, 3, 3.5, 4]) NC.text(written.drawing, 25, written.pixel([0, w])[1] + 4, w, "end", "nc-axis");
  NC.text(written.drawing, 30 + WIDE, 289, "v", "end", "nc-axis");
  NC.text(written.drawing, 12, TOP + 8, "w", "end", "nc-axis");
  NC.text(other.drawing, OTHER.right, 289, "u", "end", "nc-axis");
  const handle = NC.handle(written.drawing, {
    label: "Point",
    move(x, y) {
      [state.v, state.w] = written.value(x, y).map((value, k) => NC.within(LIMITS["vw"[k]], value));
      refresh();
    },
  });
  const dot = svg("circle", { r: 6, class: "nc-point" });
  other.drawing.append(dot);
  const grip = NC.handle(other.drawing, {
    label: "Edge",
    kind: "nc-grip",
    move(x) {
      change("stretch")(+NC.within(LIMITS.stretch, (x - OTHER.middle) / (WIDE / 2)).toPrecision(3));
      controls.stretch.set(state.stretch);
    },
  });

  grip.node.append(svg("path", { class: "nc-sign", d: "M-5 0H5M-2-3-5 0-2 3M2-3 5 0 2 3" }));

  // ---- How far the loss falls.

  const bars = Object.fromEntries(Object.entries(NAMES).map(([name, words]) => [name, NC.bar(words, `nc-${name}`)]));
  const fallen = html("div", { class: "nc-bars" }, html("p", { class: "nc-title" }, "The loss falls by, in nats"), ...Object.values(bars).map((bar) => bar.node));
  const fixed = (x) => x.toFixed(5).replace("-", "−");
  const drawFalls = () => {
    const most = Math.max(...Object.values(now.falls).map(Math.abs));
    for (const [name, bar] of Object.entries(bars)) {
      bar.put(now.lowest ? 0 : now.falls[name] / most, now.lowest ? "–" : fixed(now.falls[name]));
    }
  };

  // ---- Words and controls.

  const words = NC.words();
  const unit = () => state.stretch.toFixed(2);
  const degrees = (x) => `${x.toFixed(0)} ${x.toFixed(0) === "1" ? "degree" : "degrees"}`;
  const sentence = () => {
    if (now.lowest) return "Here the loss is lowest: no step lowers it.";
    const { falls, turned } = now;
    const lowered = Object.entries(NAMES).map(([name, text]) => `${fixed(falls[name])} (${text})`);
    return `Written with u = ${unit()} v, the gradient turns by ${degrees(turned.gradient)}, the natural gradient by ${turned.natural.toFixed(0)}. ` +
      `Steps that change the predictions equally much lower the loss by ${lowered[0]}, ${lowered[1]} and ${lowered[2]}.`;
  };
  const change = (key) => (x) => {
    state[key] = x;
    refresh();
  };
  const controls = {
    stretch: NC.control({ label: "stretch of v", ...LIMITS.stretch, log: true, value: state.stretch, change: change("stretch") }),
    cost: NC.control({ label: "divergence of a step", ...LIMITS.cost, log: true, value: state.cost, change: change("cost") }),
  };
  controls.stretch.mark([{ value: 1, text: "as it is" }]);
  const buttons = NC.buttons("Drag the dot; pull the edge. Steps are drawn 5 times as large.", {
    Reset() {
      NC.forget();
      Object.assign(state, START);
      Object.entries(controls).forEach(([key, control]) => control.set(state[key]));
      refresh();
    },
    "Copy link": () => NC.share(words, NC.link("foundations", state)),
  });
  const refresh = (quiet) => {
    compute();
    handle.put(...written.draw(1, "Parameters v and w"));
    const [edge, middle] = [OTHER.middle + (state.stretch * WIDE) / 2, (TOP + BOTTOM) / 2];
    const [x, y] = other.draw(state.stretch, `The same model, with u = ${unit()} v`, [[edge - 14, middle - 14, edge + 14, middle + 14]]);
    set(dot, { cx: x, cy: y });
    grip.put(edge, middle);
    set(handle.node, { "aria-label": `Point v ${number(state.v)}, w ${number(state.w)}: drag it, or press arrow keys` });
    set(grip.node, { "aria-label": `Edge of the sheet, u ${unit()} v: pull it, or press left and right arrow` });
    drawFalls();
    words.say(sentence(), quiet);
    waiting ||= requestAnimationFrame(() => requestAnimationFrame(settle));
  };
  root.append(
    html("div", { class: "nc-panels nc-sheets" }, written.drawing, other.drawing),
    html("div", { class: "nc-controls" }, html("div", {}, ...Object.values(controls).map((control) => control.node)), fallen),
    buttons,
    ...words.nodes,
  );
  refresh(true);
  if (location.hash.startsWith("#foundations_")) root.scrollIntoView({ block: "center" });
  root.nc = { state, refresh, programs: { rulers, reach, valley }, get now() { return now; } };
});
