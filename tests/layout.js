// What is wrong with the layout of a page. Text is measured line by line, as it is drawn: what an ancestor clips or
// hides is not there. Inline boxes are higher than their letters, so neighbours may overlap by a little.
() => {
  const said = new Set(), name = n => (n.tagName.toLowerCase() + (n.id ? "#" + n.id : "")
    + (typeof n.className === "string" && n.className ? "." + n.className.trim().split(/\s+/).join(".") : ""));
  const short = text => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));
  const styles = new Map(), style = n => styles.get(n) || styles.set(n, getComputedStyle(n)).get(n);
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) said.add(`the page is ${wide} px wide in a window of ${innerWidth}`);

  // Where something inside a node may be seen: inside all of its ancestors that clip. Null: nowhere.
  const panes = new Map(), everywhere = {left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity};
  const pane = n => {
    if (!n || n === document.documentElement) return everywhere;
    if (panes.has(n)) return panes.get(n);
    const s = style(n);
    let found = null;
    if (s.opacity !== "0" && s.clipPath === "none" && s.visibility === "visible") {
      found = s.position === "fixed" ? everywhere : pane(n.parentElement);
      if (found && n !== document.body && (s.overflowX !== "visible" || s.overflowY !== "visible") && s.display !== "inline") {
        const edge = n.getBoundingClientRect();
        found = {left: Math.max(found.left, edge.left), right: Math.min(found.right, edge.right),
          top: Math.max(found.top, edge.top), bottom: Math.min(found.bottom, edge.bottom)};
      }
    }
    panes.set(n, found);
    return found;
  };
  // What of a box is seen inside its ancestors, or null.
  const seen = (box, from) => {
    const inside = pane(from);
    if (!inside) return null;
    const left = Math.max(box.left, inside.left), right = Math.min(box.right, inside.right);
    const top = Math.max(box.top, inside.top), bottom = Math.min(box.bottom, inside.bottom);
    return right - left > 1 && bottom - top > 1 ? {left, top, right, bottom} : null;
  };
  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, holder = node.parentElement;
    if (!node.data.trim() || holder.closest("script, style, noscript, option, .skip") || !holder.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const whole of range.getClientRects()) {
      const box = seen(whole, holder);
      if (!box) continue;
      lines.push({...box, node, holder});
      if (whole.left < -1) said.add(`${name(holder)} ${short(node.data)} begins left of the window`);
      const picture = holder.closest("svg");
      if (picture) {
        const edge = picture.getBoundingClientRect();
        if (whole.left < edge.left - 1 || whole.right > edge.right + 1 || whole.top < edge.top - 2 || whole.bottom > edge.bottom + 2)
          said.add(`${short(node.data)} is cut off by the edge of its picture`);
      }
    }
  }
  lines.sort((a, b) => a.top - b.top);
  lines.forEach((one, i) => {
    for (let k = i + 1; k < lines.length && lines[k].top < one.bottom; k++) {
      const other = lines[k];
      if (other.node === one.node) continue;
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - other.top;
      const least = Math.min(one.bottom - one.top, other.bottom - other.top);
      if (across > 2 && down > 0.35 * least) said.add(`${short(one.node.data)} runs into ${short(other.node.data)}`);
    }
  });
  for (const n of document.body.querySelectorAll("*")) {
    const s = style(n);
    if (!n.checkVisibility() || n.closest("svg, noscript") || s.display === "inline" || !n.clientWidth) continue;
    if (["auto", "scroll"].includes(s.overflowX) || s.textOverflow === "ellipsis" || s.clipPath !== "none") continue;
    // The text comes last: that of the body holds all scripts, megabytes of them.
    if (n.scrollWidth > n.clientWidth + 1 && n !== document.body && n.textContent.trim())
      said.add(`${name(n)} ${short(n.textContent)} is ${n.scrollWidth} px wide in ${n.clientWidth}`);
  }
  for (const cell of document.body.querySelectorAll("th, td")) {
    const high = parseFloat(style(cell).lineHeight) || 1.5 * parseFloat(style(cell).fontSize);
    const count = cell.getBoundingClientRect().height / high, words = cell.textContent.trim().split(/\s+/).length;
    const range = document.createRange();
    range.selectNodeContents(cell);
    const own = Math.round(range.getBoundingClientRect().height / high);
    if (own > 4 && own > words / 2) said.add(`${name(cell)} ${short(cell.textContent)} has ${words} words on ${own} lines`);
    if (count > 12) said.add(`a row is ${Math.round(count)} lines high: ${short(cell.textContent)}`);
  }
  return [...said];
}
