// Replays a program that natcompanion.chapters.page traced: arrays of fixed shapes, in float64.
//
// A tensor is a storage d, a shape s, and for each element, row by row, its place p in the storage. So a view is another
// list of places, and a change in place is seen through every view, as in torch. NC.load lays all memory out once; a run
// only fills it. An operation returns its result, and pushes what a run has to do onto the plan.
(() => {
  "use strict";
  const NC = (window.NC = window.NC || {});
  let plan = null;
  const run = (work) => plan.push(work);

  const size = (s) => s.reduce((a, b) => a * b, 1);
  const strides = (s) => s.map((_, k) => size(s.slice(k + 1)));
  const tensor = (s, d, p) => ({ s, d, p });
  const fresh = (s, d = new Float64Array(size(s))) => tensor(s, d, Int32Array.from(d, (_, k) => k));
  const lift = (x) => (typeof x === "object" ? x : fresh([], Float64Array.of(x)));
  const wrap = (k, n) => (k < 0 ? k + n : k);

  // Views: the element at (i, j, ...) is the element o + i t[0] + j t[1] + ... of a.
  const lattice = (s, t, o = 0) => {
    let p = [o];
    s.forEach((n, k) => {
      p = p.flatMap((at) => Array.from({ length: n }, (_, i) => at + i * t[k]));
    });
    return p;
  };
  const view = (a, s, t, o) => tensor(s, a.d, Int32Array.from(lattice(s, t, o), (k) => a.p[k]));
  const spread = (a, s) => {
    const skip = s.length - a.s.length;
    const t = strides(a.s);
    return view(a, s, s.map((n, k) => (k < skip || (a.s[k - skip] === 1 && n !== 1) ? 0 : t[k - skip])), 0);
  };
  const common = (...all) => {
    const rank = Math.max(...all.map((a) => a.s.length));
    return Array.from({ length: rank }, (_, k) =>
      all.map((a) => a.s[a.s.length - rank + k] ?? 1).reduce((m, n) => (m === 1 ? n : m), 1));
  };
  const slice = (a, dim = 0, from = 0, to = Infinity, step = 1) => {
    dim = wrap(dim, a.s.length);
    const n = a.s[dim];
    const clip = (k) => Math.min(Math.max(wrap(k, n), 0), n);
    const s = a.s.slice();
    const t = strides(a.s);
    const start = clip(from ?? 0);
    s[dim] = Math.max(0, Math.ceil((clip(to ?? n) - start) / step));
    const o = start * t[dim];
    t[dim] *= step;
    return view(a, s, t, o);
  };
  const permute = (a, order) => {
    const t = strides(a.s);
    order = order.map((k) => wrap(k, order.length));
    return view(a, order.map((k) => a.s[k]), order.map((k) => t[k]), 0);
  };
  const shaped = (a, s) => {
    const n = a.p.length;
    return tensor(s.map((k) => (k < 0 ? n / -size(s) : k)), a.d, a.p);
  };
  // The dimensions dims (all, if there are none) come last and become one: (rows, elements of a row).
  const rows = (a, dims) => {
    const rank = a.s.length;
    const all = dims == null || (Array.isArray(dims) && !dims.length);
    const last = all ? a.s.map((_, k) => k) : [dims].flat().map((k) => wrap(k, rank));
    const first = a.s.map((_, k) => k).filter((k) => !last.includes(k));
    const n = size(last.map((k) => a.s[k]));
    const kept = a.s.map((m, k) => (last.includes(k) ? 1 : m));
    return { ...permute(a, [...first, ...last]), n, first: first.map((k) => a.s[k]), kept };
  };

  // Element by element.
  const write = (to, from) => {
    const { d, p } = to;
    const [read, q] = [from.d, from.p];
    run(() => {
      // A copy of what is read, in case both lie in the same storage.
      const values = read === d ? read.slice() : read;
      for (let k = 0; k < p.length; k++) d[p[k]] = values[q[k]];
    });
    return to;
  };
  const one = (f) => (a) => {
    const o = fresh(a.s);
    const [values, { d, p }] = [o.d, a];
    run(() => {
      for (let k = 0; k < values.length; k++) values[k] = f(d[p[k]]);
    });
    return o;
  };
  const pairs = (loop) => (x, y) => {
    const s = common(lift(x), lift(y));
    const [a, b, o] = [spread(lift(x), s), spread(lift(y), s), fresh(s)];
    run(() => loop(o.d, a.d, a.p, b.d, b.p));
    return o;
  };
  const two = (f) => pairs((o, a, p, b, q) => {
    for (let k = 0; k < o.length; k++) o[k] = f(a[p[k]], b[q[k]]);
  });
  const clone = one((x) => x);
  // Half of all operations: with loops of their own a browser need not call a function for each element.
  const add = pairs((o, a, p, b, q) => {
    for (let k = 0; k < o.length; k++) o[k] = a[p[k]] + b[q[k]];
  });
  const subtract = pairs((o, a, p, b, q) => {
    for (let k = 0; k < o.length; k++) o[k] = a[p[k]] - b[q[k]];
  });
  const multiply = pairs((o, a, p, b, q) => {
    for (let k = 0; k < o.length; k++) o[k] = a[p[k]] * b[q[k]];
  });
  const divide = pairs((o, a, p, b, q) => {
    for (let k = 0; k < o.length; k++) o[k] = a[p[k]] / b[q[k]];
  });
  const scaled = (a, factor) => (factor === 1 ? a : multiply(a, factor));

  // Over rows: f gives the result of the n elements of d whose places in p begin at k.
  const reduce = (f) => (a, dims, keep) => {
    const r = rows(a, dims);
    const o = fresh(keep ? r.kept : r.first);
    run(() => {
      for (let k = 0; k < o.d.length; k++) o.d[k] = f(a.d, r.p, k * r.n, r.n);
    });
    return o;
  };
  const fold = (start, f) =>
    reduce((d, p, k, n) => {
      let x = start;
      for (let i = 0; i < n; i++) x = f(x, d[p[k + i]]);
      return x;
    });
  const total = (d, p, k, n) => {
    let x = 0;
    for (let i = 0; i < n; i++) x += d[p[k + i]];
    return x;
  };
  const first = (better) =>
    reduce((d, p, k, n) => {
      let best = 0;
      for (let i = 1; i < n; i++) if (better(d[p[k + i]], d[p[k + best]])) best = i;
      return best;
    });
  const scan = (f) => (a, dim) => {
    const o = fresh(a.s);
    const [r, w] = [rows(a, dim), rows(o, dim)];
    const row = new Float64Array(r.n);
    run(() => {
      for (let b = 0; b < r.p.length; b += r.n) {
        for (let i = 0; i < r.n; i++) row[i] = a.d[r.p[b + i]];
        f(row);
        for (let i = 0; i < r.n; i++) o.d[w.p[b + i]] = row[i];
      }
    });
    return o;
  };
  const shifted = (row) => {
    const most = row.reduce((x, y) => Math.max(x, y));
    return [most, row.reduce((sum, x) => sum + Math.exp(x - most), 0)];
  };

  // Indices that are known in a run only: places, in a, of the elements that a list of index tensors picks.
  const places = (a, indices) => {
    const t = strides(a.s);
    const used = indices.flatMap((x, k) => (x ? [k] : []));
    const s = common(...used.map((k) => indices[k]));
    const together = used.every((k, i) => k === used[0] + i);
    const free = a.s.map((_, k) => k).filter((k) => !indices[k]);
    const before = together ? free.filter((k) => k < used[0]) : [];
    const after = free.filter((k) => !before.includes(k));
    const shape = (dims) => dims.map((k) => a.s[k]);
    const all = [...shape(before), ...s, ...shape(after)];
    const base = lattice(all, [...before.map((k) => t[k]), ...s.map(() => 0), ...after.map((k) => t[k])]);
    const picks = used.map((k) => {
      const x = indices[k];
      const padded = spread(shaped(spread(x, s), [...s, ...after.map(() => 1)]), all);
      return (i) => wrap(x.d[padded.p[i]], a.s[k]) * t[k];
    });
    return { s: all, at: (i) => picks.reduce((place, pick) => place + pick(i), base[i]) };
  };
  const along = (a, dim, x) => {
    dim = wrap(dim, a.s.length);
    const t = strides(a.s);
    const base = lattice(x.s, t.map((n, k) => (k === dim ? 0 : n)));
    return (i) => base[i] + wrap(x.d[x.p[i]], a.s[dim]) * t[dim];
  };
  const index = (a, indices) => {
    const { s, at } = places(a, indices);
    const o = fresh(s);
    run(() => {
      for (let k = 0; k < o.d.length; k++) o.d[k] = a.d[a.p[at(k)]];
    });
    return o;
  };

  // Matrices: the last two dimensions; f works on plain arrays, row by row, and fills the results.
  const product = (a, b) => {
    const [m, n] = a.s.slice(-2);
    const q = b.s.at(-1);
    const o = fresh([...a.s.slice(0, -1), q]);
    const [count, [d, p], [e, r], all] = [o.d.length / q || 0, [a.d, a.p], [b.d, b.p], o.d];
    run(() => {
      for (let row = 0; row < count; row++) {
        const [u, v] = [row * n, Math.floor(row / m) * n * q];
        for (let c = 0; c < q; c++) {
          let sum = 0;
          for (let i = 0; i < n; i++) sum += d[p[u + i]] * e[r[v + c + i * q]];
          all[row * q + c] = sum;
        }
      }
    });
    return o;
  };
  const matrices = (given, shapes, f) => {
    const batch = given[0].s.slice(0, -2);
    const results = shapes.map((s) => fresh([...batch, ...s]));
    const count = size(batch);
    const parts = given.map((a) => new Float64Array(size(a.s.slice(-2))));
    run(() => {
      for (let b = 0; b < count; b++) {
        parts.forEach((part, g) => {
          const { d, p } = given[g];
          for (let k = 0; k < part.length; k++) part[k] = d[p[b * part.length + k]];
        });
        f(...parts).forEach((values, k) => results[k].d.set(values, b * values.length));
      }
    });
    return results;
  };
  const identity = (n) => {
    const a = new Float64Array(n * n);
    for (let k = 0; k < n; k++) a[k * (n + 1)] = 1;
    return a;
  };
  // Gaussian elimination with pivots; b has m columns and becomes the solution.
  const eliminate = (a, b, n, m) => {
    const swap = (x, w, i, j) => {
      for (let k = 0; k < w && i !== j; k++) [x[i * w + k], x[j * w + k]] = [x[j * w + k], x[i * w + k]];
    };
    for (let c = 0; c < n; c++) {
      let pivot = c;
      for (let r = c + 1; r < n; r++) if (Math.abs(a[r * n + c]) > Math.abs(a[pivot * n + c])) pivot = r;
      swap(a, n, c, pivot);
      swap(b, m, c, pivot);
      for (let r = c + 1; r < n; r++) {
        const f = a[r * n + c] / a[c * n + c];
        for (let k = c; k < n; k++) a[r * n + k] -= f * a[c * n + k];
        for (let k = 0; k < m; k++) b[r * m + k] -= f * b[c * m + k];
      }
    }
    return substitute(a, b, n, m, true);
  };
  const substitute = (a, b, n, m, upper, unit) => {
    for (let i = 0; i < n; i++) {
      const r = upper ? n - 1 - i : i;
      for (let k = 0; k < m; k++) {
        let x = b[r * m + k];
        for (let c = upper ? r + 1 : 0; c < (upper ? n : r); c++) x -= a[r * n + c] * b[c * m + k];
        b[r * m + k] = unit ? x : x / a[r * n + r];
      }
    }
    return b;
  };
  const transposed = (a, n, m) => {
    const b = new Float64Array(n * m);
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) b[j * n + i] = a[i * m + j];
    return b;
  };
  const lower = (a, n) => {
    const l = new Float64Array(n * n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j <= i; j++) {
        let x = a[i * n + j];
        for (let k = 0; k < j; k++) x -= l[i * n + k] * l[j * n + k];
        l[i * n + j] = i === j ? Math.sqrt(x) : x / l[j * n + j];
      }
    return l;
  };
  // One-sided Jacobi: the columns of w (m rows, n columns) are turned until they are orthogonal; v records the turns.
  const orthogonal = (w, v, m, n) => {
    for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
      turned = false;
      for (let i = 0; i < n; i++)
        for (let j = i + 1; j < n; j++) {
          let [p, q, r] = [0, 0, 0];
          for (let k = 0; k < m; k++) {
            const [x, y] = [w[k * n + i], w[k * n + j]];
            [p, q, r] = [p + x * x, q + y * y, r + x * y];
          }
          if (Math.abs(r) <= 1e-16 * Math.sqrt(p * q)) continue;
          turned = true;
          const z = (q - p) / (2 * r);
          const t = (z < 0 ? -1 : 1) / (Math.abs(z) + Math.hypot(1, z));
          turn(w, m, n, i, j, t);
          turn(v, n, n, i, j, t);
        }
    }
  };
  // Turn two lists of m elements, a step apart, that begin at i and j: columns, if the step is their number.
  const turn = (w, m, step, i, j, t) => {
    const c = 1 / Math.sqrt(1 + t * t);
    for (let k = 0; k < m * step; k += step) {
      const [x, y] = [w[k + i], w[k + j]];
      w[k + i] = c * (x - t * y);
      w[k + j] = c * (t * x + y);
    }
  };
  const column = (w, m, n, j) => {
    const x = new Float64Array(m);
    for (let k = 0; k < m; k++) x[k] = w[k * n + j];
    return x;
  };
  // Columns of length 1; one that has no direction gets one that is orthogonal to all others.
  const directions = (w, m, n, lengths) => {
    const least = Math.max(...lengths) * 1e-300;
    const u = [];
    lengths.forEach((length, j) => u.push(length > least ? column(w, m, n, j).map((x) => x / length) : null));
    const dot = (x, y) => x.reduce((sum, value, k) => sum + value * y[k], 0);
    return u.map((x, j) => {
      for (let e = 0; !x && e < m; e++) {
        let y = Float64Array.from({ length: m }, (_, k) => +(k === e));
        for (const other of [...u, ...u]) if (other) y = y.map((value, k) => value - dot(other, y) * other[k]);
        const length = Math.hypot(...y);
        if (length > 0.5 / Math.sqrt(m)) x = u[j] = y.map((value) => value / length);
      }
      return x;
    });
  };
  const singular = (a, m, n) => {
    const v = identity(n);
    orthogonal(a, v, m, n);
    const lengths = Array.from({ length: n }, (_, j) => Math.hypot(...column(a, m, n, j)));
    const order = lengths.map((_, j) => j).sort((i, j) => lengths[j] - lengths[i]);
    const u = directions(a, m, n, lengths);
    return [
      Float64Array.from({ length: m * n }, (_, k) => u[order[k % n]][Math.floor(k / n)]),
      Float64Array.from(order, (j) => lengths[j]),
      Float64Array.from({ length: n * n }, (_, k) => v[(k % n) * n + order[Math.floor(k / n)]]),
    ];
  };
  // Jacobi for a symmetric matrix, of which one triangle counts; eigenvalues ascend.
  const symmetric = (given, n, upper) => {
    const a = given.map((x, k) => (Math.floor(k / n) < k % n === upper ? x : given[(k % n) * n + Math.floor(k / n)]));
    const v = identity(n);
    for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
      turned = false;
      for (let i = 0; i < n; i++)
        for (let j = i + 1; j < n; j++) {
          const r = a[i * n + j];
          if (Math.abs(r) <= 1e-17 * Math.sqrt(Math.abs(a[i * n + i] * a[j * n + j]))) continue;
          turned = true;
          const z = (a[j * n + j] - a[i * n + i]) / (2 * r);
          const t = (z < 0 ? -1 : 1) / (Math.abs(z) + Math.hypot(1, z));
          turn(a, n, n, i, j, t);
          turn(a, n, 1, i * n, j * n, t);
          a[i * n + j] = a[j * n + i] = 0;
          turn(v, n, n, i, j, t);
        }
    }
    const order = Array.from({ length: n }, (_, k) => k).sort((i, j) => a[i * n + i] - a[j * n + j]);
    return [order.map((k) => a[k * n + k]), v.map((_, k) => v[Math.floor(k / n) * n + order[k % n]])];
  };
  // Householder reflections, with LAPACK's signs.
  const householder = (a, m, n) => {
    const q = identity(m);
    for (let c = 0; c < n; c++) {
      const x = column(a, m, n, c).map((value, k) => (k < c ? 0 : value));
      if (x.every((value, k) => k <= c || !value)) continue;
      x[c] += (x[c] < 0 ? -1 : 1) * Math.hypot(...x);
      const length = x.reduce((sum, value) => sum + value * value, 0);
      for (const [w, width] of [[a, n], [q, m]])
        for (let j = 0; j < width; j++) {
          let dot = 0;
          for (let k = c; k < m; k++) dot += x[k] * w[k * width + j];
          for (let k = c; k < m; k++) w[k * width + j] -= (2 * dot / length) * x[k];
        }
    }
    const r = Float64Array.from({ length: n * n }, (_, k) => (Math.floor(k / n) > k % n ? 0 : a[k]));
    return [Float64Array.from({ length: m * n }, (_, k) => q[(k % n) * m + Math.floor(k / n)]), r];
  };
  const columns = (b, a) => (b.s.length < a.s.length ? shaped(b, [...b.s, 1]) : b);
  const truth = (f) => (...x) => +f(...x);

  const ops = (NC.ops = {
    get: (all, k) => all[k],
    copy_: (to, from) => write(to, spread(lift(from), to.s)),

    diagonal: (a, offset = 0, i = 0, j = 1) => {
      const rank = a.s.length;
      [i, j] = [wrap(i, rank), wrap(j, rank)];
      const t = strides(a.s);
      const rest = t.map((_, k) => k).filter((k) => k !== i && k !== j);
      const n = Math.max(0, Math.min(a.s[i] + Math.min(offset, 0), a.s[j] - Math.max(offset, 0)));
      const o = offset < 0 ? -offset * t[i] : offset * t[j];
      return view(a, [...rest.map((k) => a.s[k]), n], [...rest.map((k) => t[k]), t[i] + t[j]], o);
    },
    expand: (a, s) => spread(a, s.map((n, k) => (n < 0 ? a.s[k - s.length + a.s.length] : n))),
    permute,
    select: (a, dim, k) => {
      dim = wrap(dim, a.s.length);
      k = wrap(k, a.s[dim]);
      return shaped(slice(a, dim, k, k + 1), a.s.filter((_, i) => i !== dim));
    },
    slice,
    split: (a, sizes, dim = 0) => {
      let end = 0;
      return sizes.map((n) => slice(a, dim, (end += n) - n, end));
    },
    squeeze: (a, dims) => {
      const gone = dims === undefined ? a.s.map((_, k) => k) : [dims].flat().map((k) => wrap(k, a.s.length));
      return shaped(a, a.s.filter((n, k) => n !== 1 || !gone.includes(k)));
    },
    unsqueeze: (a, dim) => {
      const s = a.s.slice();
      s.splice(wrap(dim, s.length + 1), 0, 1);
      return shaped(a, s);
    },
    view: shaped,

    clone,
    cat: (all, dim = 0) => {
      all = all.filter((a) => a.s.length > 1 || size(a.s));
      dim = wrap(dim, all[0].s.length);
      const o = fresh(all[0].s.map((n, k) => (k === dim ? all.reduce((sum, a) => sum + a.s[k], 0) : n)));
      let end = 0;
      for (const a of all) write(slice(o, dim, end, (end += a.s[dim])), a);
      return o;
    },
    flip: (a, dims) => {
      const turned = dims.map((k) => wrap(k, a.s.length));
      const t = strides(a.s);
      const o = turned.reduce((sum, k) => sum + (a.s[k] - 1) * t[k], 0);
      return clone(view(a, a.s, t.map((n, k) => (turned.includes(k) ? -n : n)), o));
    },

    abs: one(Math.abs),
    ceil: one(Math.ceil),
    cos: one(Math.cos),
    exp: one(Math.exp),
    expm1: one(Math.expm1),
    floor: one(Math.floor),
    isnan: one(truth((x) => x !== x)),
    log: one(Math.log),
    log1p: one(Math.log1p),
    logical_not: one(truth((x) => !x)),
    neg: one((x) => -x),
    reciprocal: one((x) => 1 / x),
    relu: one((x) => (x < 0 ? 0 : x)),
    rsqrt: one((x) => 1 / Math.sqrt(x)),
    sigmoid: one((x) => 1 / (1 + Math.exp(-x))),
    sign: one((x) => (x > 0) - (x < 0)),
    sin: one(Math.sin),
    sqrt: one(Math.sqrt),
    tanh: one(Math.tanh),
    trunc: one(Math.trunc),

    add: (a, b, factor = 1) => add(a, scaled(b, factor)),
    sub: (a, b, factor = 1) => subtract(a, scaled(b, factor)),
    mul: multiply,
    div: divide,
    pow: two(Math.pow),
    remainder: two((x, y) => x - y * Math.floor(x / y)),
    atan2: two(Math.atan2),
    maximum: two(Math.max),
    minimum: two(Math.min),
    eq: two(truth((x, y) => x === y)),
    ne: two(truth((x, y) => x !== y)),
    lt: two(truth((x, y) => x < y)),
    le: two(truth((x, y) => x <= y)),
    gt: two(truth((x, y) => x > y)),
    ge: two(truth((x, y) => x >= y)),
    logical_and: two(truth((x, y) => x && y)),
    logical_or: two(truth((x, y) => x || y)),
    clamp: (a, low, high) => {
      const raised = low == null ? a : ops.maximum(a, low);
      return high == null ? raised : ops.minimum(raised, high);
    },
    where: (c, x, y) => {
      const s = common(c, lift(x), lift(y));
      const [z, a, b, o] = [spread(c, s), spread(lift(x), s), spread(lift(y), s), fresh(s)];
      run(() => {
        for (let k = 0; k < o.d.length; k++) o.d[k] = z.d[z.p[k]] ? a.d[a.p[k]] : b.d[b.p[k]];
      });
      return o;
    },

    sum: reduce(total),
    mean: reduce((d, p, k, n) => total(d, p, k, n) / n),
    prod: fold(1, (x, y) => x * y),
    amax: fold(-Infinity, Math.max),
    amin: fold(Infinity, Math.min),
    any: fold(0, truth((x, y) => x || y)),
    argmax: first((x, y) => x > y),
    argmin: first((x, y) => x < y),
    cumsum: scan((row) => row.forEach((x, k) => (row[k] += k ? row[k - 1] : 0))),
    softmax: scan((row) => {
      const [most, sum] = shifted(row);
      row.forEach((x, k) => (row[k] = Math.exp(x - most) / sum));
    }),
    log_softmax: scan((row) => {
      const [most, sum] = shifted(row);
      row.forEach((x, k) => (row[k] = x - most - Math.log(sum)));
    }),

    gather: (a, dim, x) => {
      const at = along(a, dim, x);
      const o = fresh(x.s);
      run(() => {
        for (let k = 0; k < o.d.length; k++) o.d[k] = a.d[a.p[at(k)]];
      });
      return o;
    },
    scatter_add: (a, dim, x, from) => {
      const o = clone(a);
      const at = along(o, dim, x);
      const b = view(from, x.s, strides(from.s), 0);
      run(() => {
        for (let k = 0; k < b.p.length; k++) o.d[at(k)] += b.d[b.p[k]];
      });
      return o;
    },
    index,
    index_select: (a, dim, x) => index(a, a.s.map((_, k) => (k === wrap(dim, a.s.length) ? x : null))),
    index_put: (a, indices, values, accumulate = false) => {
      const o = clone(a);
      const { s, at } = places(o, indices);
      const b = spread(values, s);
      run(() => {
        for (let k = 0; k < b.p.length; k++) {
          const value = b.d[b.p[k]];
          o.d[at(k)] = accumulate ? o.d[at(k)] + value : value;
        }
      });
      return o;
    },

    mm: product,
    bmm: product,
    addmm: (c, a, b, beta = 1, alpha = 1) => add(scaled(c, beta), scaled(product(a, b), alpha)),
    cholesky: (a, upper = false) => {
      const n = a.s.at(-1);
      return matrices([a], [[n, n]], (x) => [upper ? transposed(lower(x, n), n, n) : lower(x, n)]);
    },
    cholesky_solve: (b, l, upper = false) => {
      const [n, m] = b.s.slice(-2);
      const solved = (x, f) => {
        const low = upper ? transposed(f, n, n) : f;
        return [substitute(transposed(low, n, n), substitute(low, x, n, m, false), n, m, true)];
      };
      return matrices([b, l], [[n, m]], solved)[0];
    },
    eigh: (a, triangle = "L") => {
      const n = a.s.at(-1);
      return matrices([a], [[n], [n, n]], (x) => symmetric(x, n, triangle === "U"));
    },
    inv: (a) => {
      const n = a.s.at(-1);
      return matrices([a], [[n, n]], (x) => [eliminate(x, identity(n), n, n)]);
    },
    qr: (a) => {
      const [m, n] = a.s.slice(-2);
      return matrices([a], [[m, n], [n, n]], (x) => householder(x, m, n));
    },
    solve: (a, b) => {
      const wide = columns(b, a);
      const [n, m] = wide.s.slice(-2);
      const [x] = matrices([a, wide], [[n, m]], (f, y) => [eliminate(f, y, n, m)]);
      return [shaped(x, b.s)];
    },
    solve_triangular: (a, b, upper, left = true, unit = false) => {
      const [n, m] = b.s.slice(-2);
      const flipped = (f, y) => transposed(substitute(transposed(f, m, m), transposed(y, n, m), m, n, !upper, unit), m, n);
      const solved = (f, y) => [left ? substitute(f, y, n, m, upper, unit) : flipped(f, y)];
      return matrices([a, b], [[n, m]], solved)[0];
    },
    svd: (a) => {
      const [m, n] = a.s.slice(-2);
      const k = Math.min(m, n);
      return matrices([a], [[m, k], [k], [k, n]], (x) => {
        if (m >= n) return singular(x, m, n);
        const [u, s, vh] = singular(transposed(x, m, n), n, m);
        return [transposed(vh, m, m), s, transposed(u, n, m)];
      });
    },
  });

  // Return a function of the inputs (numbers, or arrays row by row) that gives a Float64Array for each output.
  NC.load = ({ inputs, constants, code, outputs }) => {
    const registers = [...inputs, ...constants].map(([...shape], k) =>
      k < inputs.length ? fresh(shape) : fresh(shape[0], Float64Array.from(shape[1], Number)));
    const read = (x) => {
      if (Array.isArray(x)) return x.map(read);
      if (typeof x !== "string") return x;
      return /^\d/.test(x) ? registers[x] : /^(-?Infinity|NaN)$/.test(x) ? Number(x) : x;
    };
    plan = [];
    for (const [name, ...given] of code) {
      if (!ops[name]) throw new Error(`the runtime has no operation ${name}`);
      registers.push(ops[name](...given.map(read)));
    }
    const work = plan;
    const results = outputs.map((name) => registers[name]);
    return (...values) => {
      values.forEach((value, k) => {
        if (typeof value === "number") registers[k].d[0] = value;
        else registers[k].d.set(value);
      });
      for (const step of work) step();
      return results.map(({ d, p }) => {
        const values = new Float64Array(p.length);
        for (let k = 0; k < p.length; k++) values[k] = d[p[k]];
        return values;
      });
    };
  };
})();
