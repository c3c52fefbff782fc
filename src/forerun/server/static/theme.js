// Before anything is shown: dark or light as it was chosen, else as the system has it.
try {
  const chosen = localStorage.getItem("forerun.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // no storage: as the system has it
}

addEventListener("DOMContentLoaded", () =>
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("forerun.theme", root.dataset.theme);
  }),
);
