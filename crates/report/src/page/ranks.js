"use strict";
(() => {
  const table = document.getElementById("ranks");
  const buttons = [...table.querySelectorAll("button")];
  function toggle(button) {
    const opens = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", opens);
    document.getElementById(button.getAttribute("aria-controls")).hidden = !opens;
  }
  table.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    const button = row && row.querySelector("button");
    // Whoever marks a text does not mean the row.
    if (button && getSelection().isCollapsed) toggle(button);
  });
  table.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    const at = buttons.indexOf(event.target);
    const next = at >= 0 && buttons[at + steps[event.key]];
    if (!next || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    next.focus();
  });
})();
