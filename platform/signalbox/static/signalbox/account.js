// Log-in and password pages: a button that shows what was typed.
for (const field of document.querySelectorAll(".password-field")) {
  const input = field.querySelector("input");
  const button = field.querySelector("button");
  button.hidden = false;
  button.addEventListener("click", () => {
    const shown = input.type === "text";
    input.type = shown ? "password" : "text";
    button.textContent = shown ? "Show" : "Hide";
    button.setAttribute("aria-pressed", String(!shown));
  });
}
