// Before anything is shown: dark or light as it was chosen, else as the system has it.
try {
  const chosen = localStorage.getItem("forerun.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // no storage: as the system has it
}
