// The episode reader. Data becomes text nodes and attributes, never markup, which the page's content security policy would refuse.
"use strict";
(() => {
  const { episodes, vocabulary, units, policies } = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 200; // rows of the list that are created at a time
  const IMPROBABLE = 4; // -log-probability from which a token has the full color, about 2 %
  const byId = new Map(episodes.map((episode) => [episode.id, episode]));
  const byTask = Map.groupBy ? Map.groupBy(episodes, (episode) => episode.task) : grouped(episodes);
  const find = (id) => document.getElementById(id);
  const which = find("which"), outcome = find("outcome"), where = find("where"), task = find("task");
  const coloring = find("coloring"), list = find("list"), panes = find("panes");
  let matching = [], shown = 0, opened = null, compared = null;

  function grouped(all) {
    const groups = new Map();
    for (const one of all) groups.has(one.task) ? groups.get(one.task).push(one) : groups.set(one.task, [one]);
    return groups;
  }

  function make(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  const number = (value) => (value === null || value === undefined ? "none" : String(value));
  const place = (one) =>
    one.split === "train" ? `training, step ${one.number}`
      : one.split === "validation" ? `validation after step ${one.number}` : `held out ${one.number}`;
  const played = (one) => (one.split === "held_out" && one.policy ? `${place(one)}, ${one.policy}` : place(one));
  const symbol = (one) => (one.disagreement ? "≠" : one.right === null ? "?" : one.right ? "✓" : "✗");
  const judgement = (one) =>
    one.disagreement ? (one.disagreement.kind === "paid_wrong" ? "paid and wrong" : "right and not paid")
      : one.right === null ? "not graded" : one.right ? "right" : "wrong";

  function choices(select, pairs) {
    for (const [value, label] of pairs) {
      const option = make("option", "", label);
      option.value = value;
      select.append(option);
    }
  }

  const kinds = {
    all: ["all", () => true],
    disagreement: ["disagreements", (one) => one.disagreement],
    wrong: ["wrong", (one) => one.right === false],
    right: ["right", (one) => one.right === true],
  };
  const sorted = (values) => [...new Set(values)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  choices(which, Object.entries(kinds).map(([key, [label]]) => [key, label]));
  choices(outcome, [["", "any way"], ...sorted(episodes.map((one) => one.outcome)).map((one) => [one, one.replaceAll("_", " ")])]);
  choices(where, [["", "anything"], ...sorted(episodes.map(played)).map((one) => [one, one])]);
  choices(coloring, [["", "nothing"], ["logprob", "log-probability"], ["advantage", "advantage"]]);
  if (!vocabulary.length) coloring.disabled = true;

  function filter() {
    const name = task.value.trim(), words = name.toLowerCase();
    const asked = byTask.has(name) ? (one) => one.task === name : (one) => one.task.toLowerCase().includes(words);
    matching = episodes.filter((one) =>
      kinds[which.value][1](one) && (!outcome.value || one.outcome === outcome.value) &&
      (!where.value || played(one) === where.value) && asked(one));
    find("count").textContent = matching.length === episodes.length ? "" : `${matching.length} of ${episodes.length} match.`;
    list.replaceChildren();
    shown = 0;
    grow();
  }

  function grow() {
    for (const one of matching.slice(shown, shown + PAGE)) list.append(make("li", "", row(one)));
    shown = Math.min(shown + PAGE, matching.length);
    find("more").hidden = shown === matching.length;
    stops(list);
  }

  function row(one) {
    const button = make("button", `row ${one.disagreement ? "disagreement" : one.right ? "right" : "wrong"}`,
      make("span", "symbol", symbol(one)),
      make("span", "", make("b", "", one.task), make("br"), make("small", "", `${played(one)}, #${one.attempt}`)),
      make("span", "numbers", `reward ${number(one.reward)}`, make("br"), `score ${number(one.score)}`));
    button.type = "button";
    button.dataset.id = one.id;
    button.setAttribute("aria-label", `${one.task}, ${played(one)}, ${judgement(one)}, reward ${number(one.reward)}, score ${number(one.score)}`);
    if (one === opened) button.setAttribute("aria-current", "true");
    return button;
  }

  // The Tab key stops once for many buttons; the arrow keys move between them.
  function stops(container) {
    const buttons = [...container.querySelectorAll("button")];
    if (buttons.length && !buttons.some((button) => button.tabIndex === 0 && button.hasAttribute("tabindex"))) {
      buttons.forEach((button) => { button.tabIndex = -1; });
      buttons[0].tabIndex = 0;
    } else {
      buttons.filter((button) => !button.hasAttribute("tabindex")).forEach((button) => { button.tabIndex = -1; });
    }
  }

  function arrows(container, event) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const buttons = [...container.querySelectorAll("button")];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    buttons.forEach((button) => { button.tabIndex = -1; });
    next.tabIndex = 0;
    next.focus();
  }

  function open(one, other = null) {
    opened = one;
    compared = other;
    for (const button of list.querySelectorAll("button")) {
      if (button.dataset.id === one.id) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    history.replaceState(null, "", `#episode=${encodeURIComponent(one.id)}`);
    draw();
  }

  function draw() {
    panes.replaceChildren(...[opened, compared].filter(Boolean).map(pane));
    panes.classList.toggle("two", Boolean(compared));
    find("scale").textContent = {
      "": "",
      logprob: "The stronger the color, the less probable the token was when it was sampled. It is strongest at a log-probability of -4 (2 %) or less.",
      advantage: "The turn of a blue token was reinforced, and the turn of an orange token was made less likely. The stronger the color, the larger the advantage.",
    }[coloring.value];
  }

  function pane(one) {
    const made = make("section", "pane",
      make("h3", "", one.task, " ", make("small", "", one.id)),
      make("p", one.disagreement ? "disagreement" : one.right ? "right" : "wrong",
        make("span", "symbol", symbol(one)), ` ${judgement(one)}; ended as ${one.outcome.replaceAll("_", " ")}; ${played(one)}, #${one.attempt} of its group, ${one.seconds} s`));
    if (one === opened) made.append(chooser(one));
    if (one.disagreement) made.append(make("p", "fault", make("b", "", "At fault: "), one.disagreement.fault));
    if (one.error) made.append(make("p", "fault", make("b", "", "Error: "), one.error));
    made.append(values(one));
    one.messages.forEach((message) => made.append(block(one, message)));
    if (one.aside) {
      made.append(make("h4", "", "Messages in other branches"));
      one.aside.forEach((message) => made.append(block(one, message)));
    }
    const fields = make("details", "", make("summary", "", "Fields of the task, including the ground truth"), make("pre", "", one.fields));
    made.append(fields);
    return made;
  }

  function chooser(one) {
    const others = byTask.get(one.task).filter((other) => other !== one);
    if (!others.length) return make("p", "faint", "The page has no other episode of this task.");
    const select = make("select");
    choices(select, [["", "nothing"], ...others.map((other) => [other.id, `${symbol(other)} ${played(other)}, #${other.attempt}, reward ${number(other.reward)}, score ${number(other.score)}`])]);
    select.value = compared ? compared.id : "";
    select.addEventListener("change", () => {
      compared = byId.get(select.value) ?? null;
      draw();
      panes.querySelector("select").focus();
    });
    return make("p", "", make("label", "", "Compare with ", select));
  }

  function values(one) {
    const table = make("table", "values");
    const add = (name, value, className = "") =>
      table.append(make("tr", className, make("td", "", name), make("td", "number", number(value))));
    add("reward", one.reward, "total");
    for (const [name, value] of Object.entries(one.components)) add(`· ${name}`, value);
    add("score", one.score, "total");
    for (const [name, value] of Object.entries(one.parts)) add(`· ${name}`, value);
    return table;
  }

  function block(one, message) {
    const turn = message.turn === undefined ? null : one.turns[message.turn];
    const facts = [];
    if (turn) {
      facts.push(`turn ${message.turn + 1}`, `${turn.num} tokens`);
      if (turn.reward !== undefined) facts.push(`reward ${number(turn.reward)}`);
      if (turn.advantage !== undefined) facts.push(`advantage ${number(turn.advantage)}`);
      if (turn.logprob !== undefined) facts.push(`mean log-probability ${number(turn.logprob)}`);
      if (turn.cut) facts.push("cut at the token limit");
      if (turn.untrained) facts.push(`not trained: ${turn.untrained.replaceAll("_", " ")}`);
    }
    const made = make("div", `message ${["assistant", "tool", "user", "system"].includes(message.role) ? message.role : "other"}`,
      make("p", "who", make("b", "", message.role), facts.length ? make("small", "", ` ${facts.join(", ")}`) : null,
        message.error ? make("span", "fault", ` ${message.error.replaceAll("_", " ")}`) : null));
    if (turn && turn.tokens && coloring.value) {
      made.append(tokens(one, turn));
      return made;
    }
    if (message.reasoning) made.append(make("pre", "reasoning", message.reasoning));
    if (message.text) made.append(make("pre", "", message.text));
    for (const [name, given] of message.calls ?? []) made.append(make("pre", "call", make("b", "", name), ` ${given}`));
    for (const bad of message.malformed ?? []) made.append(make("pre", "call fault", `could not be read as a call: ${bad}`));
    if (!message.text && !message.calls && !message.malformed && !message.reasoning) made.append(make("p", "faint", "(empty)"));
    return made;
  }

  function tokens(one, turn) {
    const largest = Math.max(...one.turns.map((other) => Math.abs(other.advantage ?? 0)), 1e-9);
    const made = make("pre", `tokens ${coloring.value}`);
    turn.tokens.forEach((token, index) => {
      const logprob = turn.logprobs[index] === null || turn.logprobs[index] === undefined ? null : turn.logprobs[index] / units;
      const span = make("span", (turn.advantage ?? 0) < 0 ? "down" : "up", vocabulary[token]);
      const share = coloring.value === "logprob" ? (logprob === null ? 0 : Math.min(1, -logprob / IMPROBABLE))
        : Math.abs(turn.advantage ?? 0) / largest;
      span.style.setProperty("--share", `${Math.round(70 * share)}%`);
      span.title = `log-probability ${number(logprob)}${turn.advantage === undefined ? "" : `, advantage ${turn.advantage}`}`;
      made.append(span);
    });
    return made;
  }

  // Links from findings and from the map of tasks lead to the episodes of the verdict's policies.
  function show(one) {
    find("episodes").scrollIntoView();
    open(one);
    panes.focus({ preventScroll: true });
  }

  function showTask(name) {
    which.value = "all";
    outcome.value = where.value = "";
    task.value = name;
    filter();
    const exact = byTask.get(name) ?? [];
    const [before, after] = policies.map((policy) => exact.find((one) => one.policy === policy));
    const first = after ?? before ?? exact[0];
    if (!first) return find("episodes").scrollIntoView();
    show(first);
    if (before && after) open(after, before);
  }

  for (const control of [which, outcome, where]) control.addEventListener("change", filter);
  task.addEventListener("input", filter);
  coloring.addEventListener("change", () => { if (opened) draw(); });
  find("more").addEventListener("click", grow);
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) open(byId.get(button.dataset.id));
  });
  list.addEventListener("keydown", (event) => arrows(list, event));
  const map = document.querySelector(".map");
  if (map) {
    stops(map);
    map.addEventListener("keydown", (event) => arrows(map, event));
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-episode], [data-task]");
    if (button?.dataset.episode !== undefined) show(byId.get(button.dataset.episode));
    else if (button) showTask(button.dataset.task);
  });

  filter();
  const asked = location.hash.startsWith("#episode=") ? byId.get(decodeURIComponent(location.hash.slice(9))) : null;
  if (asked) show(asked);
  else if (episodes.length) {
    opened = episodes[0];
    filter();
    draw();
  }
})();
