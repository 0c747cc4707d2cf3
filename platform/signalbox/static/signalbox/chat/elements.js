// Building the page's own elements. Text goes in as text: nothing here takes HTML.

/** An element with attributes (`on…`: listeners, `true`/`false`: present or not) and children. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the icons of `icons.html`. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A signal lamp: `amber`, `green`, `red` or `off`; pulsing while something is under way. */
export function lamp(colour, { pulsing = false } = {}) {
  return element("span", { class: `lamp lamp-${colour}${pulsing ? " lamp-pulse" : ""}`, "aria-hidden": "true" });
}

/** A button with an icon only; its name is spoken, and shown on hover. */
export function iconButton(name, label, onclick) {
  return element("button", { class: "icon-button", type: "button", "aria-label": label, title: label, onclick }, icon(name));
}

/** A button that copies what `text()` gives and says so for a moment. */
export function copyButton(label, text, { caption = false } = {}) {
  const button = caption
    ? element("button", { type: "button" }, icon("copy"), element("span", {}, label))
    : iconButton("copy", label);
  button.addEventListener("click", async () => {
    const copied = await copy(text());
    const said = copied ? "Copied" : "Copying failed";
    button.replaceChildren(icon(copied ? "check" : "alert"), ...(caption ? [element("span", {}, said)] : []));
    button.setAttribute("aria-label", said);
    setTimeout(() => {
      button.replaceChildren(icon("copy"), ...(caption ? [element("span", {}, label)] : []));
      button.setAttribute("aria-label", label);
    }, 1600);
  });
  button.setAttribute("aria-label", label);
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text.replace(/\n$/, ""));
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** Browsers give no clipboard to pages over plain HTTP: the old way still works there. */
function copyBySelection(text) {
  const focused = document.activeElement;
  const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus?.({ preventScroll: true });
  return copied;
}
