// Before anything is painted: the theme that was chosen last. Without one, the system's own.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
