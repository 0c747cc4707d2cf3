// A model's Markdown as elements that can do no harm.
//
// What a model writes is not trusted: raw HTML in it is shown as text, pictures become links (nothing is fetched from
// anywhere), links go only to http, https and mailto, and what comes out is sanitized once more before it touches the
// page. The page's content security policy would stop scripts even then.
import { Marked } from "../../vendor/marked.js";
import DOMPurify from "../../vendor/dompurify.js";
import hljs from "../../vendor/highlight.js";
import { copyButton, element } from "./elements.js";

/** Tags that models write in the middle of Markdown and that only format. */
const FORMATTING = /^<\/?(?:br|sub|sup|kbd|u|s|b|i|em|strong|mark)\s*\/?>$/i;
const LANGUAGE_CLASS = /^language-[\w+#.-]{1,30}$/;
/** Code longer than this is shown plain: colouring it at every frame would hold the page up. */
const LONGEST_HIGHLIGHTED = 20_000;

const PROSE = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "del",
    "a", "table", "thead", "tbody", "tr", "th", "td", "sub", "sup", "kbd", "u", "s", "b", "i", "mark",
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const COLOURED_CODE = {
  ALLOWED_TAGS: ["span"],
  ALLOWED_ATTR: ["class"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text, block }) => {
      if (!block && FORMATTING.test(text)) return text;
      return block ? `<p>${escaped(text.trimEnd()).replaceAll("\n", "<br>")}</p>` : escaped(text);
    },
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

DOMPurify.addHook("uponSanitizeAttribute", (node, attribute) => {
  if (attribute.attrName === "class" && node.nodeName !== "SPAN" && !LANGUAGE_CLASS.test(attribute.attrValue)) {
    attribute.keepAttr = false;
  }
});
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

function escaped(text) {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}

/**
 * One growing Markdown text in one container. Only blocks whose source has changed are rendered anew: while an answer
 * streams in that is the last one, so selections and scroll positions in the others stay.
 */
export class MarkdownView {
  #container;
  #sources = [];

  constructor(container) {
    this.#container = container;
  }

  /** Show `text`. Returns the plain text of blocks that are complete now and were not before. */
  update(text, { finished = false } = {}) {
    const tokens = marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
    const completed = [];
    tokens.forEach((token, index) => {
      const complete = finished || index < tokens.length - 1;
      const known = this.#sources[index];
      if (known?.source === token.raw && known.complete === complete) return;
      const block = known?.source === token.raw ? this.#container.children[index] : this.#render(token, index);
      if (complete && !known?.complete) completed.push(block.textContent);
      this.#sources[index] = { source: token.raw, complete };
    });
    while (this.#container.children.length > tokens.length) this.#container.lastElementChild.remove();
    this.#sources.length = tokens.length;
    return completed;
  }

  #render(token, index) {
    const block = element("div", { class: "block" }, DOMPurify.sanitize(marked.parser([token]), PROSE));
    for (const pre of block.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
    for (const table of block.querySelectorAll("table")) {
      const frame = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
      table.replaceWith(frame);
      frame.append(table);
    }
    const present = this.#container.children[index];
    if (present) present.replaceWith(block);
    else this.#container.append(block);
    return block;
  }
}

function codeBlock(pre) {
  const code = pre.querySelector("code") ?? pre;
  const source = code.textContent;
  const name = [...code.classList].find((entry) => LANGUAGE_CLASS.test(entry))?.slice("language-".length) ?? "";
  const language = hljs.getLanguage(name);
  const shown = element("code", {}, source);
  if (language && source.length <= LONGEST_HIGHLIGHTED) {
    const { value } = hljs.highlight(source, { language: name, ignoreIllegals: true });
    shown.replaceChildren(DOMPurify.sanitize(value, COLOURED_CODE));
  }
  return element(
    "figure",
    { class: "code" },
    element(
      "figcaption",
      { class: "code-head" },
      element("span", {}, language?.name ?? (name || "Text")),
      copyButton("Copy", () => source, { caption: true }),
    ),
    element("pre", { tabindex: "0" }, shown),
  );
}
