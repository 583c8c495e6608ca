"use strict";
// Without this script everything is there: it only hides strategies and saves the record.
for (const legend of document.querySelectorAll(".legend")) {
  const profile = legend.closest("section");
  legend.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const mark of profile.querySelectorAll(`.s[data-s="${button.dataset.s}"]`)) {
      mark.classList.toggle("off", !shown);
    }
  });
  const point = (event) => {
    const button = event.target.closest("button");
    for (const mark of profile.querySelectorAll(".s")) {
      mark.classList.toggle("dim", button !== null ? mark.dataset.s !== button.dataset.s : false);
    }
  };
  legend.addEventListener("pointerover", point);
  legend.addEventListener("focusin", point);
  const leave = () => {
    for (const mark of profile.querySelectorAll(".dim")) mark.classList.remove("dim");
  };
  legend.addEventListener("pointerleave", leave);
  legend.addEventListener("focusout", leave);
}
const save = document.getElementById("save");
save.hidden = false;
save.addEventListener("click", async () => {
  const packed = atob(document.getElementById("inflight-record").textContent.trim());
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const record = await new Response(stream).text();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([record], { type: "application/json" }));
  link.download = "inflight.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
