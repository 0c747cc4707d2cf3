// Applies the colour scheme before the first paint, so that no page flashes in the other one: the one chosen here
// (kept in this browser), or the system's. Not a module: those run only after the page has been parsed.
(() => {
  const KEY = "signalbox.theme";
  const root = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

  const chosen = () => {
    try {
      return localStorage.getItem(KEY) ?? "system";
    } catch {
      return "system"; // storage is off in this browser
    }
  };

  const apply = () => {
    const choice = chosen();
    root.dataset.theme = choice === "system" ? (systemIsDark.matches ? "dark" : "light") : choice;
    root.dataset.themeChoice = choice;
    for (const input of document.querySelectorAll("input[name=theme]")) input.checked = input.value === choice;
  };

  apply();
  systemIsDark.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("DOMContentLoaded", apply);
  addEventListener("change", (event) => {
    if (!event.target.matches?.("input[name=theme]")) return;
    try {
      localStorage.setItem(KEY, event.target.value);
    } catch {
      root.dataset.theme = event.target.value; // it holds for this page
      return;
    }
    apply();
  });
})();
