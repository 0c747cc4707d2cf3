// Questions to the reader, as the browser's own modal dialogs: focus is kept in them and given back.

const deleting = document.getElementById("delete-dialog");
const renaming = document.getElementById("rename-dialog");
const shortcuts = document.getElementById("shortcuts-dialog");

document.getElementById("rename-cancel").addEventListener("click", () => renaming.close("cancel"));
for (const dialog of [deleting, renaming, shortcuts]) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && outside(dialog, event)) dialog.close("cancel");
  });
}

function outside(dialog, { clientX: x, clientY: y }) {
  const box = dialog.getBoundingClientRect();
  return x < box.left || x > box.right || y < box.top || y > box.bottom;
}

function answer(dialog) {
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "confirm"), { once: true });
  });
}

/** Whether the reader really wants the chat deleted. */
export function confirmDelete(title) {
  document.getElementById("delete-name").textContent = title || "New chat";
  return answer(deleting);
}

/** The new title, or null when the reader thought better of it. */
export async function askTitle(title) {
  const input = document.getElementById("rename-input");
  input.value = title;
  const confirmed = answer(renaming);
  input.select();
  return (await confirmed) && input.value.trim() ? input.value.trim() : null;
}

export function showShortcuts() {
  if (!shortcuts.open) shortcuts.showModal();
}

export function anyOpen() {
  return document.querySelector("dialog[open]") !== null;
}
