// The strip that says that the connection is gone, and when the next attempt is.
import { element, lamp } from "./elements.js";

/** A connection that is back within this time is not worth a word. */
const PATIENCE_MS = 700;

export function showConnection(socket) {
  const strip = document.getElementById("connection");
  const words = element("span");
  const button = element("button", { class: "button button-small", type: "button", onclick: () => socket.retryNow() }, "Try now");
  strip.append(lamp("amber", { pulsing: true }), words, button);
  let since = 0;
  let next = 0;
  let timer = 0;

  const update = () => {
    if (socket.state === "open") return;
    const seconds = Math.ceil((next - Date.now()) / 1000);
    words.textContent =
      socket.state === "waiting" && seconds > 1
        ? `No connection. Trying again in ${seconds} s.`
        : "No connection. Trying again…";
    button.hidden = socket.state !== "waiting" || seconds <= 1;
    strip.hidden = Date.now() - since < PATIENCE_MS;
  };

  socket.addEventListener("state", ({ detail: { state, retryAt } }) => {
    next = retryAt;
    if (state === "open") {
      clearInterval(timer);
      timer = since = 0;
      strip.hidden = true;
      return;
    }
    since ||= Date.now();
    timer ||= setInterval(update, 250);
  });
}
