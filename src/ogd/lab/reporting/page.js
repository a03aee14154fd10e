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
    table.closest(".block").querySelector(".title").after(button);
  }

  // the values under the pointer
  const tip = made("div", { className: "tip", hidden: true });
  document.body.append(tip);
  const show = (text, figure, methods) => {
    const [heading, ...lines] = text.split("\n");
    tip.replaceChildren(made("strong", { textContent: heading }));
    for (const [number, line] of lines.entries()) {
      if (off.has(methods[number])) continue;
      const [, label, said] = /^(.*): (.*)$/.exec(line);
      const legend = figure && all("[data-label]", figure).find((one) => one.dataset.label === label);
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
    const methods = spot.dataset.methods?.split(" ") ?? [];
    if (title) title.remove();
    else spot.removeAttribute("title");
    spot.addEventListener("pointerenter", (event) => (show(text, spot.closest("figure"), methods), place(event)));
    spot.addEventListener("pointermove", place);
    spot.addEventListener("pointerleave", () => (tip.hidden = true));
  }

  // a slider moves every method's line to where it was after a task
  for (const figure of all(".after")) {
    const moves = JSON.parse(figure.dataset.moves);
    const [input, output] = [figure.querySelector("input"), figure.querySelector("output")];
    const lines = all("svg[role] [data-method]", figure);
    const draw = (points) => lines.forEach((line, number) => {
      line.querySelector("path").setAttribute("d", `M${points[number].map((point) => point.join(" ")).join("L")}`);
      all("use", line).forEach((marker, task) => {
        const point = points[number][task];
        marker.style.display = point ? "" : "none";
        if (point) ["x", "y"].forEach((name, axis) => marker.setAttribute(name, point[axis]));
      });
    });
    const after = (task) => moves.map((line) => line[task - 1]);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let [shown, frame] = [after(moves[0].length), 0];
    input.disabled = false;
    input.addEventListener("input", () => {
      output.textContent = input.value;
      cancelAnimationFrame(frame);
      const [from, to, began] = [shown, after(Number(input.value)), performance.now()];
      const step = (now) => {
        const share = still ? 1 : Math.min(1, Math.max(0, now - began) / 250);
        shown = to.map((line, n) => line.map((point, task) => {
          const old = from[n][task] ?? point;
          return point.map((value, axis) => old[axis] + share * (value - old[axis]));
        }));
        draw(shown);
        if (share < 1) frame = requestAnimationFrame(step);
      };
      step(began);
    });
  }

  // each figure as it is shown, with heading and legend, as a slide of 16:9
  const resolved = (text) => {
    const style = getComputedStyle(document.documentElement);
    return text.replace(/var\((--[a-z]+)\)|currentColor/g, (_, name = "--ink") =>
      style.getPropertyValue(name).trim().replaceAll('"', "'"));
  };
  const wrapped = (text, most) => text.split(" ").reduce((lines, word) => {
    if (`${lines.at(-1)} ${word}`.length > most) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
    return lines;
  }, [""]);
  const set = (element, attributes) => {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const node = (name, attributes, ...children) => {
    const element = set(document.createElementNS(document.querySelector("svg").namespaceURI, name), attributes);
    element.append(...children);
    return element;
  };
  const slide = (figure) => {
    const block = figure.closest(".block");
    const fact = all(".facts div").find((one) => one.querySelector("dd").textContent.startsWith("on task 1"));
    const heading = block?.querySelector("h3") ?? fact ?? document.querySelector("h1");
    const said = heading.textContent.trim().replace(/^(\d+\s%)/, "$1 ").replace(/[ \n]+/g, " ");
    const legend = all(".legend li", figure).filter((item) => !item.querySelector('[aria-pressed="false"]'));
    const drawing = figure.querySelector("svg[role]").cloneNode(true);
    for (const part of all(".spot, .off", drawing)) part.remove();
    drawing.removeAttribute("style");
    set(drawing, { x: 60, y: 225, width: legend.length ? 1090 : 1480, height: 645 });
    const entries = legend.flatMap((item, number) => {
      const swatch = set(item.querySelector("svg").cloneNode(true), { x: 1180, y: 230 + 56 * number, width: 56, height: 24 });
      const lines = wrapped(item.textContent.trim(), 22).map((line, row) => node("tspan", { x: 1250, dy: row ? 26 : 0 }, line));
      return [swatch, node("text", { y: 250 + 56 * number, "font-size": 24, fill: "var(--ink)" }, ...lines)];
    });
    const below = block?.querySelector("p.title")?.textContent ?? figure.querySelector("figcaption").textContent;
    const caption = wrapped(below, 130).slice(0, 2).map((line, row) => node("tspan", { x: 60, dy: row ? 28 : 0 }, line));
    const title = wrapped(said, 58).map((line, row) => node("tspan", { x: 60, dy: row ? 54 : 0 }, line));
    const whole = node("svg", { viewBox: "0 0 1600 900", width: 1600, height: 900, "font-family": "var(--sans)", color: "var(--ink)" },
      node("rect", { width: 1600, height: 900, fill: "var(--ground)" }),
      node("text", { y: 90, "font-size": 44, "font-weight": 600, fill: "var(--ink)" }, ...title),
      node("text", { y: 180, "font-size": 22, fill: "var(--muted)" }, ...caption), drawing, ...entries);
    return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(resolved(new XMLSerializer().serializeToString(whole)))}`;
  };
  const save = (name, url) => made("a", { href: url, download: name }).click();
  for (const figure of all("figure:has(svg[role])")) {
    const name = `${figure.querySelector("svg[role]").id.replace("-drawing", "")}-16x9`;
    const picture = () => {
      const image = made("img", { src: slide(figure), onload: () => {
        const canvas = made("canvas", { width: 1920, height: 1080 });
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        save(`${name}.png`, canvas.toDataURL());
      } });
    };
    const line = made("p", { className: "files slide", textContent: "As a slide, 16:9: " });
    for (const [label, act] of [["SVG", () => save(`${name}.svg`, slide(figure))], ["PNG", picture]]) {
      const button = made("button", { type: "button", textContent: label });
      button.addEventListener("click", act);
      line.append(button, " ");
    }
    figure.append(line);
  }

  // a link into something that is folded unfolds it
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = target?.closest("details:not([open])");
    if (!folded) return;
    folded.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

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
