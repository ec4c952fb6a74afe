"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const run = data.timeline;
  const at = (id) => document.getElementById(id);
  const chart = at("chart");
  const KIB = 1024;

  // What is shown. The view is a range of ops, the moment an index into the moments that have maps.
  const state = { from: 0, to: Math.max(run.ops, 1), moment: 0, first: 0, second: 0, view: "memory" };

  // Text.
  const grouped = (number) => number.toLocaleString("en-US");
  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (bytes >= 1024 && unit + 1 < units.length) {
      bytes /= 1024;
      unit += 1;
    }
    return `${unit === 0 ? bytes : bytes.toFixed(2)} ${units[unit]}`;
  }
  const count = (number, what) => `${grouped(number)} ${what}${number === 1 ? "" : "s"}`;
  function add(parent, tag, text, className) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (className) element.className = className;
    parent.append(element);
    return element;
  }
  function fillTable(id, heads, rows) {
    const table = at(id);
    const numbers = heads.map((head) => head.endsWith("#"));
    const head = add(add(table, "thead", ""), "tr", "");
    heads.forEach((text, column) => {
      const cell = add(head, "th", text.replace("#", ""), numbers[column] ? "number" : "");
      cell.scope = "col";
    });
    const body = add(table, "tbody", "");
    for (const { cells, className } of rows) {
      const row = add(body, "tr", "", className);
      cells.forEach((text, column) => add(row, "td", text, numbers[column] ? "number" : ""));
    }
  }
  function legend(id, entries) {
    const list = at(id);
    list.replaceChildren();
    for (const [text, background] of entries) {
      const item = add(list, "li", "");
      const swatch = document.createElement("span");
      swatch.style.background = background;
      item.append(swatch, text);
    }
  }

  // Drawing.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const streamColour = (index) => `hsl(${(index * 137 + 210) % 360} 55% 52%)`;
  function prepare(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = colour("paper");
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    return { context, width, height };
  }
  const MARGIN = { left: 74, right: 12, top: 10, bottom: 34 };
  const highest = (list) => list.reduce((most, kib) => Math.max(most, kib), 0) * KIB;
  const policy = (which) => run.policies[state[which]];
  const top = 1.04 * Math.max(
    data.device_bytes, highest(run.live.high_kib), ...run.policies.map((one) => highest(one.reserved.high_kib)), 1);

  // One value for each column of pixels: the most of the buckets in it, so that no peak is lost.
  function columns(series, width, until) {
    const values = new Float64Array(Math.max(1, Math.floor(width))).fill(-1);
    const perColumn = (state.to - state.from) / values.length;
    for (let column = 0; column < values.length; column += 1) {
      const start = state.from + column * perColumn;
      if (start >= until) break;
      const first = Math.floor(start / run.ops_per_bucket);
      const last = Math.max(first, Math.ceil((start + perColumn) / run.ops_per_bucket) - 1);
      for (let bucket = first; bucket <= last && bucket < series.length; bucket += 1) {
        values[column] = Math.max(values[column], series[bucket] * KIB);
      }
    }
    return values;
  }
  function area(context, values, base, x, y) {
    values.forEach((value, column) => {
      const low = base ? Math.max(base[column], 0) : 0;
      if (value > low) context.fillRect(x + column, y(value), 1.5, y(low) - y(value));
    });
  }
  function line(context, values, x, y, dash) {
    context.setLineDash(dash);
    context.beginPath();
    let open = false;
    values.forEach((value, column) => {
      if (value < 0) return;
      if (open) context.lineTo(x + column, y(value));
      else context.moveTo(x + column, y(value));
      open = true;
    });
    context.stroke();
    context.setLineDash([]);
  }
  // A step of 1, 2 or 5 times a power of ten, so that there are few labels.
  function step(range) {
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(range)) - 1);
    return [1, 2, 5, 10, 20, 50].map((factor) => factor * unit).find((one) => range / one <= 6);
  }

  function drawChart() {
    const { context, width, height } = prepare(chart);
    const inner = width - MARGIN.left - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const y = (bytes) => bottom - (bytes / top) * (bottom - MARGIN.top);
    const x = (op) => MARGIN.left + ((op - state.from) / (state.to - state.from)) * inner;
    context.fillStyle = colour("faint");
    context.strokeStyle = colour("line");
    context.textAlign = "right";
    context.textBaseline = "middle";
    // A power of two: sizes are said in GiB and MiB.
    const bytesStep = 2 ** Math.ceil(Math.log2(top / 6));
    for (let bytes = 0; bytes <= top; bytes += bytesStep) {
      context.fillText(size(bytes), MARGIN.left - 6, y(bytes));
      context.strokeRect(MARGIN.left, Math.round(y(bytes)) + 0.5, inner, 0);
    }
    context.textAlign = "center";
    const opsStep = step(state.to - state.from);
    for (let op = Math.ceil(state.from / opsStep) * opsStep; op <= state.to; op += opsStep) {
      context.fillText(grouped(op), x(op), bottom + 10);
    }
    context.fillText("ops (allocations, frees and marks)", MARGIN.left + inner / 2, bottom + 25);

    const one = policy("first");
    const two = policy("second");
    const left = MARGIN.left;
    if (state.view === "streams") {
      let below = null;
      run.streams.forEach((stream, index) => {
        const values = columns(stream.live.high_kib, inner, Infinity);
        const stacked = below ? values.map((value, column) => Math.max(value, 0) + below[column]) : values;
        context.fillStyle = streamColour(index);
        area(context, stacked, below, left, y);
        below = stacked;
      });
    } else {
      const until = one && one.oom_op !== null ? one.oom_op : Infinity;
      context.fillStyle = colour("unreached");
      area(context, columns(run.live.high_kib, inner, Infinity), null, left, y);
      if (one) {
        context.fillStyle = colour("unused");
        area(context, columns(one.reserved.high_kib, inner, until), null, left, y);
        context.fillStyle = colour("live");
        area(context, columns(run.live.high_kib, inner, until), null, left, y);
      }
      if (two && two !== one) {
        context.strokeStyle = colour("other");
        context.lineWidth = 1.5;
        line(context, columns(two.reserved.high_kib, inner, two.oom_op === null ? Infinity : two.oom_op), left, y, [5, 3]);
      }
    }
    context.lineWidth = 1;
    context.strokeStyle = colour("limit");
    context.strokeRect(left, Math.round(y(data.device_bytes)) + 0.5, inner, 0);
    const inView = (op) => op >= state.from && op <= state.to;
    [one, two].forEach((drawn) => {
      if (drawn && drawn.oom_op !== null && inView(drawn.oom_op)) {
        context.textAlign = x(drawn.oom_op) > width / 2 ? "right" : "left";
        const text = ` ✕ ${drawn.name} fails `;
        const height = y(data.device_bytes) + (drawn === one ? 14 : 30);
        const left = context.textAlign === "right" ? x(drawn.oom_op) - context.measureText(text).width : x(drawn.oom_op);
        context.fillStyle = colour("paper");
        context.fillRect(left, height - 8, context.measureText(text).width, 16);
        context.fillStyle = colour("limit");
        context.fillText(text, x(drawn.oom_op), height);
      }
    });
    run.moments.forEach((op, index) => {
      if (!inView(op)) return;
      const chosen = index === state.moment;
      context.fillStyle = colour(chosen ? "ink" : "faint");
      context.fillRect(x(op) - 0.75, chosen ? MARGIN.top : bottom, 1.5, chosen ? bottom - MARGIN.top + 5 : 5);
    });
    Object.assign(chart.dataset, { from: state.from, to: state.to, moment: run.moments[state.moment], view: state.view });
    const entries = state.view === "streams"
      ? run.streams.map((stream, index) => [`live, stream ${stream.stream}`, streamColour(index)])
      : [
        ["live: requested and not freed", colour("live")],
        [`stranded: reserved by ${one ? one.name : "the policy"}, not live`, colour("unused")],
      ];
    if (state.view === "streams" && run.streams_left_out > 0) {
      entries.push([`${count(run.streams_left_out, "other stream")} not drawn`, "none"]);
    }
    if (state.view !== "streams") {
      if (two && two !== one) entries.push([`reserved by ${two.name} (dashed)`, colour("other")]);
      if (one && one.oom_op !== null) entries.push(["live in the recording, after the policy failed", colour("unreached")]);
    }
    entries.push([`the device: ${size(data.device_bytes)}`, colour("limit")]);
    legend("chart-legend", entries);
    chart.setAttribute("aria-label",
      `Memory over time from op ${grouped(Math.round(state.from))} to ${grouped(Math.round(state.to))}`);
  }

  // The map of a policy at the moment, or the one at which it failed before.
  function mapOf(drawn) {
    const op = run.moments[state.moment];
    return drawn.maps.reduce((found, map) => (map.op <= op ? map : found), null);
  }
  function drawMap(which) {
    const canvas = at(`map-${which}`);
    const { context, width, height } = prepare(canvas);
    const drawn = policy(which);
    const map = drawn && mapOf(drawn);
    canvas.dataset.op = map ? map.op : "";
    canvas.dataset.policy = drawn ? drawn.name : "";
    if (!map) {
      at(`map-${which}-text`).textContent = drawn ? `${drawn.name}: nothing has run yet` : "";
      return;
    }
    const cells = map.cells;
    let edge = Math.max(2, Math.floor(Math.sqrt((width * height) / Math.max(cells.length, 1))));
    while (edge > 2 && Math.ceil(cells.length / Math.floor(width / edge)) * edge > height) edge -= 1;
    edge = Math.min(edge, 18);
    const perRow = Math.max(1, Math.floor(width / edge));
    const gap = edge > 3 ? 1 : 0;
    const [live, unused, faint] = [colour("live"), colour("unused"), colour("faint")];
    for (let index = 0; index < cells.length; index += 1) {
      const x = (index % perRow) * edge;
      const y = Math.floor(index / perRow) * edge;
      const inner = edge - gap;
      if (cells[index] === "|") {
        context.fillStyle = faint;
        context.fillRect(x + inner / 2 - 0.5, y, 1, inner);
        continue;
      }
      const part = Number(cells[index]) / 9;
      context.fillStyle = unused;
      context.fillRect(x, y, inner, inner);
      context.fillStyle = live;
      context.fillRect(x, y + inner * (1 - part), inner, inner * part);
    }
    const failed = drawn.oom_op === map.op ? ", where it fails" : "";
    at(`map-${which}-text`).textContent =
      `${drawn.name}, before op ${grouped(map.op)}${failed}: ${size(map.live_bytes)} live, ${size(map.free_bytes)} free in ` +
      `${count(map.free_runs, "run")}, the largest ${size(map.largest_free_bytes)}. Each cell is ${size(map.cell_bytes)}.`;
  }
  function drawMoment() {
    const op = run.moments[state.moment];
    const before = Math.max(0, Math.min(Math.ceil(op / run.ops_per_bucket) - 1, run.live.high_kib.length - 1));
    const value = (series) => {
      if (before >= series.high_kib.length) return "nothing any more";
      const [low, high] = [series.low_kib[before] * KIB, series.high_kib[before] * KIB];
      return low === high ? size(high) : `${size(low)} to ${size(high)}`;
    };
    const parts = [`Before op ${grouped(op)} of ${grouped(run.ops)}: ${value(run.live)} live`];
    for (const drawn of new Set([policy("first"), policy("second")])) {
      if (drawn) parts.push(`${drawn.name} holds ${value(drawn.reserved)}`);
    }
    const within = run.ops_per_bucket > 1 ? ` (within ${grouped(run.ops_per_bucket)} ops)` : "";
    at("moment").textContent = `${parts.join("; ")}${within}.`;
  }
  function draw() {
    drawChart();
    drawMap("first");
    drawMap("second");
    drawMoment();
    legend("map-legend", [
      ["live blocks", colour("live")], ["free, with memory behind it", colour("unused")],
      ["between two cells: addresses without memory, of any size", colour("faint")],
    ]);
  }

  // Moving about.
  function show(from, to) {
    const least = Math.min(run.ops, Math.max(8, 8 * run.ops_per_bucket));
    const range = Math.min(Math.max(to - from, least, 1), Math.max(run.ops, 1));
    state.from = Math.min(Math.max(from, 0), Math.max(run.ops, 1) - range);
    state.to = state.from + range;
    draw();
  }
  function zoom(factor, centre) {
    show(centre - (centre - state.from) * factor, centre + (state.to - centre) * factor);
  }
  function choose(index) {
    state.moment = Math.min(Math.max(index, 0), run.moments.length - 1);
    const op = run.moments[state.moment];
    const range = state.to - state.from;
    if (op < state.from || op > state.to) show(op - range / 2, op + range / 2);
    else draw();
  }
  function nearest(op) {
    return run.moments.reduce((best, moment, index) =>
      (Math.abs(moment - op) < Math.abs(run.moments[best] - op) ? index : best), 0);
  }
  function opAt(event) {
    const box = chart.getBoundingClientRect();
    const part = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    return state.from + Math.min(Math.max(part, 0), 1) * (state.to - state.from);
  }
  const pan = (part) => show(state.from + part * (state.to - state.from), state.to + part * (state.to - state.from));
  const chosen = () => run.moments[state.moment];
  const actions = {
    ArrowLeft: () => choose(state.moment - 1), ArrowRight: () => choose(state.moment + 1),
    Home: () => choose(0), End: () => choose(run.moments.length - 1),
    "+": () => zoom(0.5, chosen()), "=": () => zoom(0.5, chosen()), "-": () => zoom(2, chosen()), 0: () => show(0, run.ops),
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const shifted = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25) };
    const action = (event.shiftKey && shifted[event.key]) || actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, opAt(event));
  }, { passive: false });
  chart.addEventListener("click", (event) => choose(nearest(opAt(event))));
  at("earlier").addEventListener("click", actions.ArrowLeft);
  at("later").addEventListener("click", actions.ArrowRight);
  at("in").addEventListener("click", actions["+"]);
  at("out").addEventListener("click", actions["-"]);
  at("all").addEventListener("click", actions[0]);
  for (const which of ["first", "second"]) {
    run.policies.forEach((one, index) => { add(at(which), "option", one.name).value = index; });
    at(which).addEventListener("change", (event) => {
      state[which] = Number(event.target.value);
      draw();
    });
  }
  at("view").addEventListener("change", (event) => {
    state.view = event.target.value;
    draw();
  });

  // What does not change.
  document.title = `${data.trace}: ${data.title}`;
  at("title").textContent = document.title;
  at("happened").textContent = data.failed_op === null
    ? `Nothing failed. At most ${size(data.peak_live_bytes)} are live at once, on a device with ${size(data.device_bytes)} for its allocator.`
    : `${data.failure_is_recorded ? "PyTorch refused" : "PyTorch's defaults would refuse"} a request of ${size(data.failed_bytes)} at op ` +
      `${grouped(data.failed_op)}, when ${size(data.live_bytes)} were live on a device with ${size(data.device_bytes)} for its allocator.`;
  if (data.verdict) {
    at("verdict").textContent = data.verdict;
    at("verdict").hidden = false;
  }
  fillTable("policies", ["setting", "outcome", "smallest device#", "driver calls#", "host waits#"], data.policies.map((one) => ({
    cells: [
      one.as_recorded ? `${one.setting} (as it ran)` : one.setting,
      one.not_replayed !== null ? "not replayed" : one.oom_op === null ? "survives" : `fails at op ${grouped(one.oom_op)}`,
      one.smallest_device_bytes === null ? "none found" : size(one.smallest_device_bytes),
      grouped(one.driver_calls), grouped(one.host_waits),
    ],
    className: one.not_replayed === null && one.oom_op === null ? "survives" : "",
  })));
  if (data.policies.length > run.policies.length) {
    add(at("policies"), "caption", `The pictures show the first ${run.policies.length} of them.`);
  }
  at("holders-text").textContent = `Live before op ${grouped(data.moment_op)}, ` +
    (data.holders.some((holder) => holder.origin !== null)
      ? "by the innermost frame that allocated them." : "by size: the recording has no stack frames.");
  fillTable("holders", ["held#", "blocks#", "each#", "stack frame", "allocated at ops#"], data.holders.map((holder) => ({
    cells: [
      size(holder.bytes), grouped(holder.blocks), holder.block_bytes === null ? "several sizes" : size(holder.block_bytes),
      holder.origin === null ? "not recorded" : holder.origin,
      holder.oldest_op === holder.newest_op ? grouped(holder.oldest_op) : `${grouped(holder.oldest_op)} to ${grouped(holder.newest_op)}`,
    ],
  })));
  fillTable("rest", ["bytes#", "where"], data.stranded === null ? [] : [
    [data.stranded.unreserved_bytes, "not held by PyTorch"],
    [data.stranded.free_in_whole_pages_bytes, "free in its cache, in whole pages of 2 MiB, which could be mapped elsewhere"],
    [data.stranded.free_in_partly_used_pages_bytes, "free in its cache, in pages that live blocks use too"],
    [data.stranded.rounding_bytes, "added to live blocks by rounding"],
    [data.stranded.free_in_private_pools_bytes, "free in private pools, for requests of these pools alone"],
    [data.stranded.waiting_bytes, "freed, but still in use by work of other streams"],
    [data.stranded.other_processes_bytes, "held by others, beside what the allocator may hold"],
  ].map(([bytes, where]) => ({ cells: [size(bytes), where] })));

  // It begins with the moment that the advice is about, native beside gapless.
  const index = (name) => run.policies.findIndex((one) => one.name === name);
  state.first = Math.max(0, index("native"), index("caching"));
  state.second = Math.max(0, index("gapless"));
  at("first").value = state.first;
  at("second").value = state.second;
  state.moment = nearest(data.moment_op);
  const redraw = () => draw();
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      document.documentElement.classList.toggle("printing", printing);
      draw();
    });
  }
  draw();
})();
