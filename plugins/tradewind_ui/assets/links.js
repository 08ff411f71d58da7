// Airflow shows the page in a frame whose links may not leave it, so the page around it is asked to follow them.
document.addEventListener("click", event => {
  const link = event.target.closest("a");
  if (link === null || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.click();
});
