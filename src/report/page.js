"use strict";
document.body.classList.add("with-script");
const WIDTH = 100000;
for (const section of document.querySelectorAll(".timeline")) {
  const svg = section.querySelector("svg");
  const output = section.querySelector("output");
  const [first, wide, last] = section.querySelectorAll(".scale span");
  const from = Number(section.dataset.from), to = Number(section.dataset.to);
  const height = svg.viewBox.baseVal.height;
  let left = 0, width = WIDTH;

  const moment = (nanoseconds) => `${(nanoseconds / 1e9).toFixed(6)} s`;
  const duration = (nanoseconds) => {
    const [value, unit] = nanoseconds < 1e3 ? [nanoseconds, "ns"] : nanoseconds < 1e6 ? [nanoseconds / 1e3, "µs"]
      : nanoseconds < 1e9 ? [nanoseconds / 1e6, "ms"] : [nanoseconds / 1e9, "s"];
    return `${Number(value.toPrecision(3))} ${unit}`;
  };
  const time = (x) => from + (x / WIDTH) * (to - from);
  const show = (newLeft, newWidth) => {
    width = Math.min(WIDTH, Math.max(newWidth, WIDTH / 1e5));
    left = Math.min(WIDTH - width, Math.max(0, newLeft));
    svg.setAttribute("viewBox", `${left} 0 ${width} ${height}`);
    first.textContent = moment(time(left));
    wide.textContent = duration(time(left + width) - time(left));
    last.textContent = moment(time(left + width));
  };
  const zoom = (factor, at = left + width / 2) => show(at - (at - left) * factor, width * factor);
  const position = (clientX) => {
    const box = svg.getBoundingClientRect();
    return left + ((clientX - box.left) / box.width) * width;
  };

  const buttons = document.createElement("div");
  for (const [label, name, action] of [
    ["+", "zoom in", () => zoom(0.5)], ["−", "zoom out", () => zoom(2)],
    ["←", "move left", () => show(left - width / 4, width)], ["→", "move right", () => show(left + width / 4, width)],
    ["all", "show all", () => show(0, WIDTH)],
  ]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", action);
    buttons.append(button, " ");
  }
  section.insertBefore(buttons, section.querySelector(".rows"));

  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, position(event.clientX));
  }, { passive: false });

  const pointers = new Map();
  let moved = false;
  svg.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    moved = false;
  });
  svg.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) return;
    if (Math.abs(event.clientX - before) < 3 && !moved) return;
    moved = true;
    svg.setPointerCapture(event.pointerId);
    const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId);
    if (others.length === 0) {
      show(left - ((event.clientX - before) / svg.getBoundingClientRect().width) * width, width);
    } else {
      const other = others[0][1];
      const distance = Math.max(1, Math.abs(event.clientX - other));
      zoom(Math.max(1, Math.abs(before - other)) / distance, position((event.clientX + other) / 2));
    }
    pointers.set(event.pointerId, event.clientX);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    svg.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }
  svg.addEventListener("click", (event) => {
    if (moved) return;
    const title = event.target.querySelector && event.target.querySelector("title");
    output.textContent = title ? title.textContent : "";
  });
}
