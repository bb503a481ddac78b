"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (root, what) => Array.from(root.querySelectorAll(what));

  // ---- which axes
  const choose = (figure) => {
    const asked = {};
    for (const axis of ["x", "y"]) {
      const on = figure.querySelector(`.choice button[data-${axis}][aria-pressed="true"]`);
      if (on) asked[axis] = on.dataset[axis];
    }
    const plots = all(figure, ".plot");
    const fits = (p, axes) => axes.every((a) => !(a in asked) || p.dataset[a] === asked[a]);
    const found = plots.find((p) => fits(p, ["x", "y"])) || plots.find((p) => fits(p, ["y"])) || plots[0];
    for (const p of plots) p.hidden = p !== found;
  };
  for (const button of all(document, ".choice button")) {
    button.addEventListener("click", () => {
      for (const other of all(button.parentNode, "button")) other.setAttribute("aria-pressed", String(other === button));
      choose(button.closest("figure"));
      tip.hidden = true;
    });
  }

  // ---- which series: a name in a legend shows or hides its method in the whole section
  const toggle = (key) => {
    const on = key.getAttribute("aria-pressed") !== "true";
    const section = key.closest("[data-section]");
    const name = key.getAttribute("aria-label");
    for (const svg of all(section, "svg")) {
      for (const k of all(svg, ".key").filter((k) => k.getAttribute("aria-label") === name)) {
        k.setAttribute("aria-pressed", String(on));
        for (const mark of all(svg, `[data-s="${k.dataset.key}"]`)) mark.classList.toggle("off", !on);
      }
    }
  };
  for (const key of all(document, ".key")) {
    key.addEventListener("click", () => toggle(key));
    key.addEventListener("keydown", (e) => {
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); toggle(key); }
    });
  }

  // ---- values: the nearest marker says what it stands for
  const NEAR = 24;
  for (const svg of all(document, ".plot svg")) {
    const spots = all(svg, ".spot").map((el) => {
      const title = el.querySelector("title");
      const text = title ? title.textContent : "";
      if (title) { title.remove(); el.setAttribute("aria-label", text); }
      return { el, text, x: Number(el.dataset.x), y: Number(el.dataset.y) };
    });
    let last = null;
    const leave = () => { if (last) last.el.classList.remove("near"); last = null; tip.hidden = true; };
    svg.addEventListener("pointermove", (e) => {
      const box = svg.getBoundingClientRect();
      const zoom = svg.viewBox.baseVal.width / box.width;
      const x = (e.clientX - box.left) * zoom, y = (e.clientY - box.top) * zoom;
      let best = null, far = NEAR * NEAR;
      for (const s of spots) {
        const d = (s.x - x) ** 2 + (s.y - y) ** 2;
        if (d < far && !s.el.classList.contains("off")) { best = s; far = d; }
      }
      if (best !== last) { leave(); last = best; }
      if (!best) return;
      best.el.classList.add("near");
      tip.textContent = best.text;
      tip.hidden = false;
      const left = box.left + best.x / zoom + 12, top = box.top + best.y / zoom - 34;
      tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8)) + scrollX}px`;
      tip.style.top = `${Math.max(4, top) + scrollY}px`;
    });
    svg.addEventListener("pointerleave", leave);
  }

  // ---- out of the page
  for (const button of all(document, ".copy")) {
    button.addEventListener("click", async () => {
      const pre = document.getElementById(button.dataset.of);
      const said = button.parentNode.querySelector("span");
      try {
        await navigator.clipboard.writeText(pre.textContent);
        said.textContent = "copied";
      } catch {
        pre.closest("details").open = true;
        getSelection().selectAllChildren(pre);
        said.textContent = document.execCommand("copy") ? "copied" : "selected: copy it with Ctrl-C";
      }
    });
  }
  for (const button of all(document, ".save")) {
    button.addEventListener("click", () => {
      const svg = button.closest("figure").querySelector(".plot:not([hidden]) svg").cloneNode(true);
      for (const off of all(svg, '.off, .key[aria-pressed="false"]')) off.remove();
      svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      svg.setAttribute("color", "#1a1a1a");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([svg.outerHTML], { type: "image/svg+xml" }));
      link.download = `${button.dataset.name}.svg`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
})();
