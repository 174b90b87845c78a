"use strict";
// Passage and question text is untrusted: it enters the page as text nodes only.
(() => {
const $ = id => document.getElementById(id);
const DEBOUNCE = 90, SHOWN = 10, MORE = 100, DEADLINE = 3;
const SLIDERS = ["budget", "redundancy", "penalty", "radius"];
const BY_PRESET = ["redundancy", "penalty", "radius"];  // until somebody moves them
const MEANS = {
  default: "Reads a passage if it is worth the penalty.",
  frugal: "A higher price: fewer tokens, some evidence is missed.",
  thorough: "No price: the budget is filled.",
  raw: "Scores as they are, not probabilities.",
};
const UNITS = {
  passages: "Whole passages; what they share is read once.",
  sentences: "Single sentences: mostly fewer tokens for the same answers.",
  auto: "Single sentences where passages that are wanted do not fit.",
};
const RADIUS = $("radius-means").textContent;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const state = {key: "", asked: "", answered: null, chosen: new Set(), first: true, reveal: false, all: false, data: null, units: "auto", said: false, open: new Set(), moved: new Set(), call: null, timer: 0, retry: 0};

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== "") node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== ""));
  return node;
}
const number = (v, digits = 3) => v === null || v === undefined ? "–" : v.toFixed(digits).replace("-", "−");
const signed = v => (v > 0 ? "+" : "") + number(v);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const gap = v => v === null ? "unknown" : v > 0 && v < 1e-4 ? "< 0.01 %" : `${number(100 * v, 2)} %`;

function say(text, error = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", error);
}
function values() {
  $("budget-value").textContent = $("budget").value;
  $("redundancy-value").textContent = state.moved.has("redundancy") ? number(Number($("redundancy").value), 2) : "by preset";
  $("penalty-value").textContent = state.moved.has("penalty") ? number(Number($("penalty").value), 3) : "by preset";
  $("radius-value").textContent = state.moved.has("radius") ? number(Number($("radius").value), 2) : "by preset";
}
function own(name) { return state.moved.has(name) ? Number($(name).value) : null; }
function settings() {
  return {
    question: state.asked, preset: $("preset").value, units: state.said ? $("units").value : null, budget_tokens: Number($("budget").value),
    redundancy_weight: own("redundancy"), passage_penalty: own("penalty"), radius: $("radius").disabled ? 0 : own("radius"),
    deadline_seconds: DEADLINE, why: true, proof: true,
  };
}

async function call(path, body, signal) {
  const headers = {"Content-Type": "application/json"};
  if (state.key) headers.Authorization = `Bearer ${state.key}`;
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal});
  const data = await response.json().catch(() => null);
  if (response.ok && data) return data;
  const error = new Error(data && data.error ? data.error.problems.join("; ") : `the service answered ${response.status}`);
  error.status = response.status;
  error.wait = Number(response.headers.get("Retry-After")) || 0;
  throw error;
}
async function run(path, body, show, busy) {
  if (state.call) state.call.abort();
  clearTimeout(state.retry);
  const control = state.call = new AbortController();
  $("selection").setAttribute("aria-busy", "true");
  if (busy) say(busy);
  const began = performance.now();
  try {
    const data = await call(path, body, control.signal);
    if (state.call !== control) return;
    show(data, performance.now() - began);
  } catch (error) {
    if (error.name === "AbortError" || state.call !== control) return;
    fail(error, () => run(path, body, show, busy));
  } finally {
    if (state.call === control) { state.call = null; $("selection").setAttribute("aria-busy", "false"); }
  }
}
function fail(error, again) {
  if (error.status === 401) {
    $("key-form").hidden = false;
    $("key").focus();
    say("The key is missing or wrong.", true);
  } else if (error.status === 503 && error.wait) {
    say(`The service is busy; trying again in ${error.wait} s.`, true);
    state.retry = setTimeout(again, 1000 * error.wait);
  } else {
    say(error instanceof TypeError ? "The service cannot be reached." : error.message, true);
  }
}
function choose() {
  clearTimeout(state.timer);  // what was still to be asked for is asked now; twice would be charged twice
  if (state.asked) run("select", {...settings(), more_tokens: MORE}, show, state.first ? "Choosing …" : "");
}
function later() {
  values();
  clearTimeout(state.timer);
  state.timer = setTimeout(choose, DEBOUNCE);
}

function show(data, took) {
  const before = state.chosen, first = state.first || (state.data && state.data.units !== data.units);
  data.reasons = data.reasons || [];  // a workflow that reads nothing weighs nothing
  const chosen = data.reasons.filter(p => p.selected).map(p => p.id);
  state.data = data;
  state.chosen = new Set(chosen);
  const entered = first ? [] : chosen.filter(id => !before.has(id));
  const left = first ? [] : [...before].filter(id => !state.chosen.has(id));
  state.first = false;
  if (state.reveal) reveal();
  values();
  proof(data);
  noted(data);
  if ("more" in data) more(data.more);  // answers do not include it; what is shown remains valid for the same passages
  else if (entered.length + left.length) more(null);
  $("answer-title").textContent = chosen.join("\n") === state.answered ? "Answer" : "Answer, from other passages";
  lists(data, new Set(entered), new Set(left));
  $("ask").disabled = chosen.length === 0;
  const change = entered.length + left.length ? `${plural(entered.length, unit(data))} added, ${left.length} removed. ` : first ? "" : `The same ${data.units}. `;
  if (chosen.length) say(`${change}${plural(chosen.length, unit(data))}, ${data.tokens} tokens, ${Math.round(took)} ms.`);
  else say("Nothing is chosen; the notes say why.", !["optimal", "none"].includes(data.status));
}
const unit = data => data.units.slice(0, -1);
function noted(data) {  // above all why nothing is chosen, and where no passage stands out
  $("notes").replaceChildren(...data.notes.map(note => el("li", {}, note.text[0].toUpperCase() + note.text.slice(1))));
  $("notes").hidden = data.notes.length === 0;
}
function reveal() {  // on a small screen the passages lie below the settings
  state.reveal = false;
  if ($("selection").getBoundingClientRect().top > innerHeight) $("selection").scrollIntoView({behavior: still.matches ? "auto" : "smooth"});
}
function proof(data) {
  const names = {optimal: "Optimal", feasible: "Feasible", infeasible: "Infeasible", no_solution: "No solution", none: "Nothing read", ranked: "Ranked"};
  const found = data.certificate || {objective: null};
  $("proof").textContent = data.status === "feasible" ? `Gap ${gap(data.gap)}` : names[data.status];
  $("proof").className = "big " + (data.status === "optimal" ? "optimal" : data.status === "feasible" ? "feasible" : "none");
  $("proof-detail").textContent = data.status === "none" ? "no program was solved"
    : found.objective === null ? "no selection satisfies all constraints"
    : `objective ${number(found.objective, 4)}; proven bound ${number(found.bound, 4)} (gap ${gap(data.gap)})`;
  const free = data.budget === null;
  $("tokens").textContent = free ? `${data.tokens}` : `${data.tokens} of ${data.budget}`;
  $("bar").style.width = `${free ? 100 : Math.min(100, 100 * data.tokens / data.budget)}%`;
}
function more(found) {
  if (!found || found.gain === null) { $("more").textContent = "–"; $("more-detail").textContent = ""; return; }
  const same = !found.added.length && !found.removed.length;
  $("more").textContent = same ? "no gain" : `gain ${signed(found.gain)}`;
  const proven = found.certified ? "" : ` (proven: ${number(found.low)} to ${number(found.high)})`;
  $("more-detail").textContent = same ? `the same ${state.data.units} would be chosen`
    : `${names(found.added, "adds")}${found.removed.length ? "; " + names(found.removed, "drops") : ""}${proven}`;
  if (found.unit_then !== unit(state.data)) $("more-detail").textContent += `; there is room for whole ${found.unit_then}s then`;
}
function names(ids, verb) {
  const found = ids.map(id => { const p = state.data.reasons.find(p => p.id === id); return p && p.title || id; });
  const titles = [...new Set(found)].map(title => { const n = found.filter(other => other === title).length; return n > 1 ? `${title} (${n})` : title; });
  return titles.length ? `${verb} ${titles.slice(0, 2).join(", ")}${titles.length > 2 ? ` and ${titles.length - 2} more` : ""}` : "";
}

function foundBy(id) {  // only where strategies search
  const found = state.data && state.data.search && state.data.search.found_by[id];
  if (!found) return "";
  const said = Object.entries(found).map(([name, rank]) => rank ? `${name} ${rank}` : `${name} by a link`);
  return said.join(", ");
}
function finders(ids) {
  const said = ids.map(foundBy).filter(found => found);
  return said.length ? el("span", {class: "finders"}, `found by ${said.join("; ")}`) : "";
}

function item(p, mark) {
  const badge = mark ? el("span", {class: `badge ${mark}`}, mark === "entered" ? "added" : "removed") : "";
  const details = el("details", {open: state.open.has(p.id) ? "open" : null},
    el("summary", {}, el("span", {}, el("span", {class: "title"}, p.title || p.id), badge),
      el("span", {class: "cost"}, `${p.tokens} tokens`), finders([p.id]), el("span", {class: "text"}, p.text)),
    el("p", {class: "why"}, p.reason), el("p", {class: "fine"}, `${p.id}${p.source ? " · " + p.source : ""} · relevance ${number(p.relevance)}`));
  details.addEventListener("toggle", () => { if (details.open) state.open.add(p.id); else state.open.delete(p.id); });
  return el("li", {"data-id": p.id, class: mark === "entered" ? "fresh" : mark === "left" ? "gone" : null}, details);
}
function places() {
  return new Map([...document.querySelectorAll(".passages > li[data-id]")].map(node => [node.dataset.id, node.getBoundingClientRect().top]));
}
function lists(data, entered, left) {
  const before = places(), focused = document.activeElement && document.activeElement.closest("li[data-id]");
  const chosen = data.reasons.filter(p => p.selected);
  const out = data.reasons.filter(p => !p.selected).sort((a, b) => left.has(b.id) - left.has(a.id) || b.value - a.value);
  const shown = state.all ? out : out.slice(0, Math.max(SHOWN, left.size));
  const texts = chosen.map(p => item(p, entered.has(p.id) ? "entered" : ""));
  $("in").replaceChildren(...(chosen.length ? texts : [el("li", {class: "empty"}, "Nothing is chosen.")]));
  $("out").replaceChildren(...shown.map(p => item(p, left.has(p.id) ? "left" : "")));
  $("read-count").textContent = `${plural(chosen.length, unit(data))}${data.parts.length < chosen.length ? ` as ${plural(data.parts.length, "text")}` : ""}, in this order`;
  $("out-count").textContent = `${out.length} of ${data.reasons.length}, closest to being chosen first`;
  $("all").hidden = shown.length === out.length;
  $("all").textContent = `Show all ${out.length}`;
  if (focused) { const again = document.querySelector(`li[data-id="${CSS.escape(focused.dataset.id)}"] summary`); if (again) again.focus({preventScroll: true}); }
  if (still.matches) return;
  for (const node of document.querySelectorAll(".passages > li[data-id]")) {
    const from = before.get(node.dataset.id);
    if (from === undefined) continue;
    const shift = from - node.getBoundingClientRect().top;
    if (!shift) continue;
    node.style.transform = `translateY(${shift}px)`;
    requestAnimationFrame(() => requestAnimationFrame(() => { node.classList.add("moved"); node.style.transform = ""; }));
  }
}
function answered(data, took) {
  show(data, took);
  state.answered = [...state.chosen].join("\n");
  $("answer-title").textContent = "Answer";
  $("answer-text").textContent = data.answer || (data.refusal && data.refusal.refused ? "Not in these passages." : "(no answer)");
  const cited = data.citations.map(n => `[${n}] ${data.parts[n - 1].source || data.parts[n - 1].ids[0]}`).join(", ");
  const refused = data.refusal && data.refusal.refused ? `, so “${data.said}” is not given` : "";
  const dollars = data.usage.dollars === undefined || data.usage.dollars === null ? "" : `, $${data.usage.dollars.toPrecision(3)}`;
  $("answer-detail").textContent = `${cited ? cited + "; " : ""}${data.model}: ${data.usage.prompt_tokens} prompt and ${data.usage.completion_tokens} answer tokens${dollars}`
    + (data.refusal ? `; probability ${data.refusal.probability.toFixed(2)} that the passages do not answer${refused}` : "");
  way(data.policy);
  $("answer").hidden = false;
}
function way(policy) {  // only under a policy: every step in a sentence, with what it took
  $("way").hidden = !policy;
  if (!policy) return;
  $("way").querySelector("summary").textContent = `How it came about: policy ${policy.name}, a token at ${Number(policy.token_price.toPrecision(2))}`;
  $("way-steps").replaceChildren(...policy.steps.map(step => el("li", {}, step.why,
    el("span", {class: "cost"}, ` ${step.tokens ? plural(step.tokens, "token") + ", " : ""}${Math.round(1000 * step.seconds)} ms`))));
}

async function propose() {  // a service without examples, or with a key that is not known yet, shows none
  const headers = state.key ? {Authorization: `Bearer ${state.key}`} : {};
  const questions = await fetch("examples", {headers}).then(response => response.ok ? response.json() : {questions: []})
    .then(data => data.questions).catch(() => []);
  $("examples").hidden = questions.length === 0;
  $("examples").querySelector("ul").replaceChildren(...questions.map(question => {
    const button = el("button", {type: "button"}, question);
    button.addEventListener("click", () => { $("question").value = question; submit(); });
    return el("li", {}, button);
  }));
}
function taken() {  // the question that stands in the box is asked, whichever button is pressed
  const question = $("question").value.trim();
  if (!question) { say("The question is empty.", true); return false; }
  if (question !== state.asked) { state.first = true; state.chosen = new Set(); state.open.clear(); state.all = false; $("answer").hidden = true; more(null); }
  state.asked = question;
  state.reveal = true;
  clearTimeout(state.timer);
  return true;
}
function submit() { if (taken()) choose(); }
$("form").addEventListener("submit", event => { event.preventDefault(); submit(); });
$("ask").addEventListener("click", () => { if (taken()) run("ask", settings(), answered, "Reading …"); });
$("key-form").addEventListener("submit", event => {
  event.preventDefault();
  state.key = $("key").value;
  $("key-form").hidden = true;
  choose();
  propose();
});
$("all").addEventListener("click", () => { state.all = true; lists(state.data, new Set(), new Set()); });
for (const name of SLIDERS) $(name).addEventListener("input", later);
for (const name of BY_PRESET) $(name).addEventListener("input", () => state.moved.add(name));
function units() {  // what embeddings may be off by is about whole passages
  const sentences = $("units").value === "sentences";
  $("units-means").textContent = UNITS[$("units").value];
  $("radius").disabled = sentences;
  if (sentences) { $("radius").value = 0; state.moved.delete("radius"); }
  $("radius-means").textContent = sentences ? "Of whole passages only: choose passages to move it." : RADIUS;
}
$("units").addEventListener("change", () => { state.said = true; units(); later(); });
function preset() { state.moved.clear(); $("preset-means").textContent = MEANS[$("preset").value]; later(); }
$("preset").addEventListener("change", preset);
$("reset").addEventListener("click", () => { $("preset").value = "default"; state.said = false; $("units").value = state.units; units(); for (const name of SLIDERS) $(name).value = $(name).defaultValue; preset(); });
document.addEventListener("keydown", event => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("question").focus(); }
});
preset();
units();
propose();
fetch("health").then(response => response.json()).then(data => {
  $("serving").textContent = `${data.index}: ${plural(data.passages, "passage")}, ${data.embedder}`;
  $("budget").max = Math.min(1024, data.limits.max_budget_tokens - MORE);
  state.units = data.units;
  if (!state.said) { $("units").value = data.units; units(); }  // what it chooses where nobody says it
}).catch(() => say("The service cannot be reached.", true));
$("question").focus();
})();
