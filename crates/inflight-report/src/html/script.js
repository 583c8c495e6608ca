"use strict";
// Without this script everything is there: it only hides strategies and saves the record.
// On a small screen bars scroll sideways; browsers leave what is half in sight where it is.
for (const bar of document.querySelectorAll("nav, .legend")) {
  bar.addEventListener("focusin", (event) => {
    event.target.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}
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
const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%*+,-./;=?@[]^_`{|}~";
// An object of lists as a list of objects.
const oneByOne = (value) => {
  if (Array.isArray(value)) return value;
  const lists = Object.entries(value).map(([name, list]) => [name, oneByOne(list)]);
  return lists[0][1].map((_, at) => Object.fromEntries(lists.map(([name, list]) => [name, list[at]])));
};
const save = document.getElementById("save");
save.hidden = false;
save.addEventListener("click", async () => {
  const packed = document.getElementById("inflight-record").textContent.trim();
  const bytes = packed.match(/.{1,5}/g).flatMap((group) => {
    let word = 0;
    for (const letter of group.padEnd(5, "~")) word = word * 85 + digits.indexOf(letter);
    const four = [24, 16, 8, 0].map((bits) => Math.floor(word / 2 ** bits) % 256);
    return four.slice(0, group.length - 1);
  });
  const stream = new Blob([Uint8Array.from(bytes)]).stream();
  const text = await new Response(stream.pipeThrough(new DecompressionStream("deflate"))).text();
  // As packed.rs has it: the record, its cells, and three columns of them, a line for each.
  const [first, ...rest] = text.split("\n");
  const count = rest.length / 4;
  const cells = rest.slice(0, count).map((cell, at) => {
    const [rounds, latency, heat] = [1, 2, 3].map((part) => rest[part * count + at]);
    return `${cell.slice(0, -1)},"rounds":${JSON.stringify(oneByOne(JSON.parse(rounds)))},"latency":${latency},"heat":${heat}}`;
  });
  const record = first.replace('"cells":[]', () => `"cells":[${cells.join(",")}]`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([record], { type: "application/json" }));
  link.download = "inflight.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
