"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const run = data.timeline;
  const at = (id) => document.getElementById(id);
  const chart = at("chart");
  const KIB = 1024;
  document.documentElement.classList.add("scripted");
  document.documentElement.classList.toggle("stacks", data.stacks.frames.length > 0);

  // What is shown. The view is a range of ops, the moment an index into the moments that have maps.
  const state = { from: 0, to: Math.max(run.ops, 1), moment: 0, first: 0, second: 0, view: "memory", pointed: null };

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
  // Each has a contrast of 4 to white and to the dark paper; a line of paper lies between two of them.
  const STREAMS = ["#337fca", "#d24d6a", "#248e2b", "#8d65d9", "#9f7328", "#228a81", "#cf3eb2", "#578822"];
  const OTHERS = "#7b7b7b";
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

  // The most of a series from one op to another: from each op where the windows have them, else from the buckets.
  function most(series, start, end) {
    let skipped = 0;
    for (const [from, to] of run.windows) {
      if (start >= from && end <= to) {
        return highest(series.close_kib.slice(skipped + Math.floor(start) - from, skipped + Math.ceil(end) - from));
      }
      skipped += to - from;
    }
    const first = Math.floor(start / run.ops_per_bucket);
    const last = Math.max(first, Math.ceil(end / run.ops_per_bucket) - 1);
    return first < series.high_kib.length ? highest(series.high_kib.slice(first, last + 1)) : -1;
  }
  // One value for each column of pixels, so that no peak is lost.
  function columns(series, width, until) {
    const values = new Float64Array(Math.max(1, Math.floor(width))).fill(-1);
    const perColumn = (state.to - state.from) / values.length;
    for (let column = 0; column < values.length; column += 1) {
      const start = state.from + column * perColumn;
      if (start >= until) break;
      values[column] = most(series, start, Math.min(start + perColumn, run.ops));
    }
    return values;
  }
  function area(context, values, base, x, y) {
    values.forEach((value, column) => {
      const low = base ? Math.max(base[column], 0) : 0;
      if (value > low) context.fillRect(x + column, y(value), 1.5, y(low) - y(value));
    });
  }
  // A line with paper on both sides, so that it can be seen on every colour.
  function line(context, values, x, y, dash) {
    context.beginPath();
    let open = false;
    values.forEach((value, column) => {
      if (value < 0) return;
      if (open) context.lineTo(x + column, y(value));
      else context.moveTo(x + column, y(value));
      open = true;
    });
    outlined(context, dash);
  }
  function outlined(context, dash) {
    const own = context.strokeStyle;
    context.strokeStyle = colour("paper");
    context.lineWidth = 4.5;
    context.stroke();
    context.strokeStyle = own;
    context.lineWidth = 1.5;
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
  }
  function straight(context, fromX, fromY, toX, toY) {
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    outlined(context, []);
  }
  // A step of 1, 2 or 5 times a power of ten, so that there are few labels.
  function step(range, width) {
    const labels = Math.min(6, Math.max(2, Math.floor(width / 90)));
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(range)) - 1);
    return [1, 2, 5, 10, 20, 50, 100].map((factor) => factor * unit).find((one) => range / one <= labels);
  }

  // The streams with the highest peaks, and all others together.
  function bandsOf() {
    const bands = run.streams.map((stream, index) => (
      { text: `live, stream ${stream.stream}`, series: stream.live, background: STREAMS[index % STREAMS.length] }));
    if (run.other_streams) {
      bands.push({ text: `live, ${count(run.streams_left_out, "other stream")}`, series: run.other_streams, background: OTHERS });
    }
    return bands;
  }
  function drawChart() {
    const { context, width, height } = prepare(chart);
    const inner = width - MARGIN.left - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const y = (bytes) => bottom - (bytes / top) * (bottom - MARGIN.top);
    const x = (op) => MARGIN.left + ((op - state.from) / (state.to - state.from)) * inner;
    context.fillStyle = colour("faint");
    context.strokeStyle = colour("grid");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    // A power of two: sizes are said in GiB and MiB.
    const bytesStep = 2 ** Math.ceil(Math.log2(top / 6));
    for (let bytes = 0; bytes <= top; bytes += bytesStep) {
      context.fillText(size(bytes), MARGIN.left - 6, y(bytes));
      context.setLineDash([1, 4]);
      context.strokeRect(MARGIN.left, Math.round(y(bytes)) + 0.5, inner, 0);
      context.setLineDash([]);
    }
    context.textAlign = "center";
    const opsStep = step(state.to - state.from, inner);
    for (let op = Math.ceil(state.from / opsStep) * opsStep; op <= state.to; op += opsStep) {
      context.fillText(grouped(op), x(op), bottom + 10);
    }
    context.fillText("ops (allocations, frees and marks)", MARGIN.left + inner / 2, bottom + 25);

    const one = policy("first");
    const two = policy("second");
    const left = MARGIN.left;
    if (state.view === "streams") {
      const bands = bandsOf().map((band) => ({ ...band, values: columns(band.series, inner, Infinity) }));
      let below = null;
      for (const band of bands) {
        band.top = below ? band.values.map((value, column) => Math.max(value, 0) + below[column]) : band.values;
        context.fillStyle = band.background;
        area(context, band.top, below, left, y);
        below = band.top;
      }
      context.strokeStyle = colour("paper");
      context.lineWidth = 1;
      for (const band of bands.slice(0, -1)) {
        context.beginPath();
        band.top.forEach((value, column) => context.lineTo(left + column, y(Math.max(value, 0))));
        context.stroke();
      }
    } else {
      const until = one && one.oom_op !== null ? one.oom_op : Infinity;
      context.fillStyle = colour("unreached");
      area(context, columns(run.live, inner, Infinity), null, left, y);
      if (one) {
        context.fillStyle = colour("unused");
        area(context, columns(one.reserved, inner, until), null, left, y);
        context.fillStyle = colour("live");
        area(context, columns(run.live, inner, until), null, left, y);
      }
      if (two && two !== one) {
        context.strokeStyle = colour("other");
        line(context, columns(two.reserved, inner, two.oom_op === null ? Infinity : two.oom_op), left, y, [5, 3]);
      }
    }
    context.strokeStyle = colour("limit");
    straight(context, left, y(data.device_bytes), left + inner, y(data.device_bytes));
    const inView = (op) => op >= state.from && op <= state.to;
    [one, two].forEach((drawn) => {
      if (drawn && drawn.oom_op !== null && inView(drawn.oom_op)) {
        context.textAlign = x(drawn.oom_op) > width / 2 ? "right" : "left";
        const text = ` ✕ ${drawn.name} fails `;
        context.strokeStyle = colour("limit");
        straight(context, x(drawn.oom_op), MARGIN.top, x(drawn.oom_op), bottom);
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
      context.strokeStyle = colour(chosen ? "ink" : "faint");
      straight(context, x(op), chosen ? MARGIN.top : bottom, x(op), bottom + 5);
    });
    Object.assign(chart.dataset, { from: state.from, to: state.to, moment: run.moments[state.moment], view: state.view });
    const entries = state.view === "streams"
      ? bandsOf().map((band) => [band.text, band.background])
      : [
        ["live: requested and not freed", colour("live")],
        [`stranded: reserved by ${one ? one.name : "the policy"}, not live`, colour("unused")],
      ];
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
  // The cells of a map, each as large as `factor` of its own, and the new number of each. A new cell begins after each gap.
  function coarser(cells, factor) {
    const numbers = new Int32Array(cells.length);
    const shades = [];
    for (let index = 0; index < cells.length;) {
      if (cells[index] === "|") {
        numbers[index] = shades.length;
        shades.push("|");
        index += 1;
        continue;
      }
      let end = index;
      let sum = 0;
      while (end < cells.length && end < index + factor && cells[end] !== "|") {
        sum += Number(cells[end]);
        numbers[end] = shades.length;
        end += 1;
      }
      const full = 9 * (end - index);
      shades.push(sum === 0 || sum === full ? sum / (end - index) : Math.min(8, Math.max(1, Math.round(sum / (end - index)))));
      index = end;
    }
    return { shades, numbers };
  }
  // The maps that are shown, in cells of one size on the screen and in memory.
  const shownMaps = {};
  function layMaps() {
    const maps = {};
    for (const which of ["first", "second"]) {
      const drawn = policy(which);
      const map = drawn && mapOf(drawn);
      maps[which] = map ? { drawn, map } : null;
    }
    const both = Object.values(maps).filter((one) => one);
    const cellBytes = Math.max(...both.map((one) => one.map.cell_bytes));
    for (const one of both) Object.assign(one, coarser(one.map.cells, cellBytes / one.map.cell_bytes), { cellBytes });
    const width = Math.min(at("map-first").clientWidth, at("map-second").clientWidth);
    const height = at("map-first").clientHeight;
    const most = Math.max(1, ...both.map((one) => one.shades.length));
    let edge = Math.max(2, Math.floor(Math.sqrt((width * height) / most)));
    while (edge > 2 && Math.ceil(most / Math.floor(width / edge)) * edge > height) edge -= 1;
    edge = Math.min(edge, 18);
    for (const one of both) Object.assign(one, { edge, perRow: Math.max(1, Math.floor(width / edge)) });
    Object.assign(shownMaps, maps);
  }
  function drawMap(which) {
    const canvas = at(`map-${which}`);
    const { context } = prepare(canvas);
    const shown = shownMaps[which];
    const drawn = policy(which);
    canvas.dataset.op = shown ? shown.map.op : "";
    canvas.dataset.policy = drawn ? drawn.name : "";
    canvas.dataset.cellBytes = shown ? shown.cellBytes : "";
    canvas.dataset.edge = shown ? shown.edge : "";
    if (!shown) {
      at(`map-${which}-text`).textContent = drawn ? `${drawn.name}: nothing has run yet` : "";
      return;
    }
    const { map, shades, edge, perRow } = shown;
    const gap = edge > 3 ? 1 : 0;
    const [live, unused, faint] = [colour("live"), colour("unused"), colour("faint")];
    const inner = edge - gap;
    shades.forEach((shade, index) => {
      const x = (index % perRow) * edge;
      const y = Math.floor(index / perRow) * edge;
      if (shade === "|") {
        context.fillStyle = faint;
        context.fillRect(x + inner / 2 - 0.5, y, 1, inner);
        return;
      }
      context.fillStyle = unused;
      context.fillRect(x, y, inner, inner);
      context.fillStyle = live;
      context.fillRect(x, y + inner * (1 - shade / 9), inner, (inner * shade) / 9);
    });
    if (state.pointed && state.pointed.which === which) {
      context.strokeStyle = colour("limit");
      for (const cell of state.pointed.cells) {
        const [x, y] = [(cell % perRow) * edge, Math.floor(cell / perRow) * edge];
        context.beginPath();
        context.rect(x, y, inner, inner);
        outlined(context, []);
      }
    }
    const failed = drawn.oom_op === map.op ? ", where it fails" : "";
    at(`map-${which}-text`).textContent =
      `${drawn.name}, before op ${grouped(map.op)}${failed}: ${size(map.live_bytes)} live, ${size(map.free_bytes)} free in ` +
      `${count(map.free_runs, "run")}, the largest ${size(map.largest_free_bytes)}. Each cell is ${size(shown.cellBytes)}.`;
  }

  // The blocks that are pointed at. They are listed for the moments that are looked at closely.
  function blocksOf(map) {
    const index = run.blocks.findIndex((blocks) => blocks.op === map.op);
    return index < 0 ? null : { ...run.blocks[index], stacks: data.block_stacks[index] };
  }
  function stackList(parent, number) {
    if (number === null || number === undefined) {
      add(parent, "p", "The recording has no stack for it.");
      return;
    }
    const list = add(parent, "ol", "");
    for (const frame of data.stacks.stacks[number]) add(list, "li", data.stacks.frames[frame]);
  }
  function describeBlock(blocks, index) {
    const asked = grouped(blocks.allocated_at[index]);
    return `${size(blocks.bytes[index])}, allocated by op ${asked} on stream ${blocks.streams[index]}`;
  }
  function point(which, cell) {
    const shown = shownMaps[which];
    const panel = at("block");
    panel.replaceChildren();
    state.pointed = null;
    if (!shown || cell < 0 || cell >= shown.shades.length || shown.shades[cell] === "|") {
      drawMap(which);
      return;
    }
    state.pointed = { which, cell, cells: [cell] };
    const shade = shown.shades[cell];
    const part = shade === 0 ? "free" : shade === 9 ? "live" : "partly live";
    const number = `cell ${grouped(cell + 1)} of ${grouped(shown.shades.length)}`;
    add(panel, "p", `${shown.drawn.name}, ${number}: ${size(shown.cellBytes)}, ${part}.`);
    const blocks = blocksOf(shown.map);
    if (!blocks) {
      const listed = run.blocks.map((one) => `op ${grouped(one.op)}`);
      add(panel, "p", `There is room for the blocks of some moments: before ${listed.join(" and ")}.`);
    } else if (shade !== 0) {
      const inCell = shown.map.blocks.map((range, index) => [range, index]).filter(([range]) =>
        range && shown.numbers[range[0]] <= cell && cell <= shown.numbers[range[1]]);
      inCell.sort((one, two) => blocks.bytes[two[1]] - blocks.bytes[one[1]]);
      if (inCell.length > 0) {
        const [[from, to], index] = [inCell[0][0].map((number) => shown.numbers[number]), inCell[0][1]];
        state.pointed.cells = Array.from({ length: to - from + 1 }, (_, offset) => from + offset);
        add(panel, "p", `The block there: ${describeBlock(blocks, index)}.`, "found");
        stackList(panel, blocks.stacks[index]);
        const rest = inCell.slice(1, 6).map(([, other]) => describeBlock(blocks, other));
        if (rest.length > 0) {
          const listed = `${rest.join("; ")}${inCell.length > 6 ? "; …" : "."}`;
          add(panel, "p", `${count(inCell.length - 1, "smaller block")} in this cell: ${listed}`);
        }
      }
      if (blocks.left_out > 0) add(panel, "p", `Not listed: ${count(blocks.left_out, "small block")} of this moment.`);
    }
    drawMap(which);
  }
  for (const which of ["first", "second"]) {
    const canvas = at(`map-${which}`);
    const pointAt = (event) => {
      const shown = shownMaps[which];
      if (!shown) return;
      const column = Math.floor(event.offsetX / shown.edge);
      const cell = Math.floor(event.offsetY / shown.edge) * shown.perRow + column;
      const before = state.pointed && state.pointed.which === which ? state.pointed.cell : -1;
      if (column < shown.perRow && cell !== before) point(which, cell);
    };
    canvas.addEventListener("pointermove", pointAt);
    canvas.addEventListener("pointerdown", pointAt);
    canvas.addEventListener("keydown", (event) => {
      const shown = shownMaps[which];
      const steps = shown && { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shown.perRow, ArrowDown: shown.perRow }[event.key];
      if (!steps || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const before = state.pointed && state.pointed.which === which ? state.pointed.cell : -Math.sign(steps);
      let cell = Math.min(Math.max(before + (before < 0 ? 1 : steps), 0), shown.shades.length - 1);
      if (shown.shades[cell] === "|") cell = Math.min(Math.max(cell + Math.sign(steps), 0), shown.shades.length - 1);
      point(which, cell);
    });
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
    layMaps();
    drawMap("first");
    drawMap("second");
    drawMoment();
    legend("map-legend", [
      ["live blocks", colour("live")], ["free, with memory behind it", colour("unused")],
      ["between two cells: addresses without memory, of any size", colour("faint")],
    ]);
  }

  // Moving about.
  const AROUND_FAILURE = 400;
  function show(from, to) {
    const least = Math.min(run.ops, 8);
    const range = Math.min(Math.max(to - from, least, 1), Math.max(run.ops, 1));
    state.from = Math.min(Math.max(from, 0), Math.max(run.ops, 1) - range);
    state.to = state.from + range;
    draw();
  }
  function zoom(factor, centre) {
    show(centre - (centre - state.from) * factor, centre + (state.to - centre) * factor);
  }
  // Where the policy fails, or the other one, or the recorded run.
  function failure() {
    const fails = [policy("first"), policy("second")].map((one) => (one ? one.oom_op : null));
    return [...fails, data.failed_op].find((op) => op !== null && op !== undefined);
  }
  function showFailure() {
    const op = failure();
    if (op === undefined) return;
    state.moment = nearest(op);
    state.pointed = null;
    show(op - AROUND_FAILURE, op + AROUND_FAILURE / 4);
  }
  function choose(index) {
    state.pointed = null;
    at("block").replaceChildren();
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
    f: showFailure,
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const shifted = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25) };
    const action = (event.shiftKey && shifted[event.key]) || actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  // Without a key, the wheel scrolls the page.
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, opAt(event));
  }, { passive: false });
  chart.addEventListener("click", (event) => choose(nearest(opAt(event))));
  at("earlier").addEventListener("click", actions.ArrowLeft);
  at("later").addEventListener("click", actions.ArrowRight);
  at("in").addEventListener("click", actions["+"]);
  at("out").addEventListener("click", actions["-"]);
  at("all").addEventListener("click", actions[0]);
  at("failure").addEventListener("click", showFailure);
  for (const which of ["first", "second"]) {
    run.policies.forEach((one, index) => { add(at(which), "option", one.name).value = index; });
    at(which).addEventListener("change", (event) => {
      state[which] = Number(event.target.value);
      state.pointed = null;
      at("block").replaceChildren();
      at("failure").disabled = failure() === undefined;
      draw();
    });
  }
  at("view").addEventListener("change", (event) => {
    state.view = event.target.value;
    draw();
  });

  // The stacks of the ops around the moment.
  const rows = [...document.querySelectorAll("#events tbody tr")];
  function showEvent(row) {
    for (const other of rows) other.classList.toggle("chosen", other === row);
    const panel = at("event");
    panel.replaceChildren();
    add(panel, "p", [...row.cells].slice(0, 4).map((cell) => cell.textContent).filter((text) => text).join(" · "));
    stackList(panel, row.dataset.stack === undefined ? null : Number(row.dataset.stack));
  }
  for (const row of rows) {
    row.addEventListener("pointerenter", () => showEvent(row));
    row.addEventListener("click", () => showEvent(row));
  }
  at("events-box").addEventListener("keydown", (event) => {
    const steps = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!steps || rows.length === 0) return;
    event.preventDefault();
    const before = rows.findIndex((row) => row.classList.contains("chosen"));
    const row = rows[Math.min(Math.max(before < 0 ? momentRow() : before + steps, 0), rows.length - 1)];
    showEvent(row);
    row.scrollIntoView({ block: "nearest" });
  });
  const momentRow = () => Math.max(0, rows.findIndex((row) => row.classList.contains("moment")));
  if (rows.length > 0) {
    const [box, row] = [at("events-box"), rows[momentRow()]];
    box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
    showEvent(row);
  }

  // It begins with the moment that the advice is about, native beside gapless.
  const index = (name) => run.policies.findIndex((one) => one.name === name);
  state.first = Math.max(0, index("native"), index("caching"));
  state.second = Math.max(0, index("gapless"));
  at("first").value = state.first;
  at("second").value = state.second;
  state.moment = nearest(data.moment_op);
  at("failure").disabled = failure() === undefined;
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
