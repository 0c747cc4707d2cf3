// What screen readers are told: finished passages and changes of state, never single tokens.

const region = document.getElementById("announcer");

export function announce(text) {
  const line = document.createElement("p");
  line.textContent = text;
  region.append(line);
  while (region.childElementCount > 20) region.firstElementChild.remove();
}
