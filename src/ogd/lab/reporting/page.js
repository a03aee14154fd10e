"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const made = (name, properties) => Object.assign(document.createElement(name), properties);
  document.documentElement.classList.add("live");

  // methods are switched on and off, everywhere at once
  const off = new Set();
  const switches = all("[data-switch]");
  for (const button of switches) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const method = button.dataset.switch;
      if (!off.delete(method)) off.add(method);
      for (const one of switches) one.setAttribute("aria-pressed", String(!off.has(one.dataset.switch)));
      for (const part of all("[data-method]")) part.classList.toggle("off", off.has(part.dataset.method));
    });
  }

  // a click on a heading sorts its table: downwards, upwards, as it was
  const value = (item, column) => {
    const cell = (item.rows ? item.rows[0] : item).cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim().replace("−", "-");
    const number = parseFloat(text);
    return Number.isNaN(number) ? (/^[–\s]*$/.test(text) ? null : text) : number;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  for (const table of all("table.sorts")) {
    const items = table.classList.contains("grouped") ? [...table.tBodies] : [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    if (items.length < 2) continue;
    heads.forEach((head, column) => {
      if (head.className === "whose" || items.every((item) => value(item, column) === null)) return;
      const button = made("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const order = { descending: "ascending", ascending: "none" }[head.ariaSort] ?? "descending";
        for (const other of heads) other.ariaSort = other === head ? order : null;
        const sign = order === "descending" ? -1 : 1;
        const ranked = order === "none" ? items : items.toSorted((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          return x === null || y === null ? (x === null) - (y === null) : sign * compare(x, y); // what is missing: last
        });
        for (const item of ranked) item.parentNode.append(item);
      });
    });
  }

  // differences are folded; marks stay beside our numbers
  for (const table of all("table.folds")) {
    const button = made("button", { type: "button", className: "fold", textContent: "Differences" });
    const fold = (open) => button.setAttribute("aria-expanded", String(table.classList.toggle("open", open)));
    fold(false);
    button.addEventListener("click", () => fold());
    table.closest(".block").querySelector("h3").after(button);
  }

  // the values under the pointer
  const tip = made("div", { className: "tip", hidden: true });
  document.body.append(tip);
  const show = (text, figure) => {
    const [heading, ...lines] = text.split("\n");
    tip.replaceChildren(made("strong", { textContent: heading }));
    for (const line of lines) {
      const [, label, said] = /^(.*): (.*)$/.exec(line);
      const legend = figure && all("[data-label]", figure).find((one) => one.dataset.label === label);
      if (legend && off.has(legend.dataset.switch)) continue;
      const name = made("span", { textContent: label });
      if (legend) name.prepend(legend.querySelector("svg").cloneNode(true));
      tip.append(name, made("span", { textContent: said }));
    }
    tip.hidden = false;
  };
  const place = (event) => {
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 16 + width > innerWidth;
    const left = right ? event.clientX - 16 - width : event.clientX + 16;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 16, innerHeight - height - 8))}px`;
  };
  for (const spot of all(".spot, .cells a")) {
    const title = spot.querySelector("title");
    const text = title ? title.textContent : spot.title;
    if (title) title.remove();
    else spot.removeAttribute("title");
    spot.addEventListener("pointerenter", (event) => (show(text, spot.closest("figure")), place(event)));
    spot.addEventListener("pointermove", place);
    spot.addEventListener("pointerleave", () => (tip.hidden = true));
  }

  // the contents say where the reader is
  const nav = document.querySelector("nav");
  const links = new Map(all("a", nav).map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const [id, link] of links) id === target.id ? (link.ariaCurrent = "true") : link.removeAttribute("aria-current");
      const link = links.get(target.id);
      nav.scrollTo({ left: link.offsetLeft - nav.clientWidth / 2, top: link.offsetTop - nav.clientHeight / 2 });
    }
  }, { rootMargin: "-15% 0px -80% 0px" });
  for (const id of links.keys()) watch.observe(document.getElementById(id));
})();
