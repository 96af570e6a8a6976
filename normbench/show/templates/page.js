// Makes a page handier, in the page itself: arms are switched off and on in all figures, a click on a heading sorts a
// table, what is to be copied has a button, and a link opens the fold that it leads into. Without it everything is there
// all the same.
const all = (what, within = document) => [...within.querySelectorAll(what)];

const drawn = all("[data-arm]");
const arms = [...new Set(drawn.map(part => part.dataset.arm))];
for (const row of all(".switches")) {
  if (arms.length < 2) continue;
  for (const name of arms) {
    const button = row.appendChild(document.createElement("button"));
    button.type = "button";
    button.className = "switch";
    button.textContent = name;
    button.setAttribute("aria-pressed", true);
    button.onclick = () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", shown);
      drawn.filter(part => part.dataset.arm === name).forEach(part => part.style.display = shown ? "" : "none");
    };
  }
}

const number = text => parseFloat(text.replace("−", "-").replace(/[<>, ]/g, ""));
for (const head of all("thead th")) {
  const sort = () => {
    const body = head.closest("table").tBodies[0], up = head.getAttribute("aria-sort") !== "ascending";
    all("th", head.parentNode).forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = row => row.cells[head.cellIndex].textContent;
    const compare = (a, b) => head.className === "figure"
      ? isNaN(number(a)) - isNaN(number(b)) || (number(a) - number(b)) * (up ? 1 : -1)
      : a.localeCompare(b) * (up ? 1 : -1);
    [...body.rows].sort((a, b) => compare(value(a), value(b))).forEach(row => body.append(row));
  };
  head.tabIndex = 0;
  head.onclick = sort;
  head.onkeydown = event => event.key === "Enter" && sort();
}

for (const box of all(".copied")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.onclick = () => {
    getSelection().selectAllChildren(box.querySelector("code, p"));
    document.execCommand("copy");
    button.textContent = "Copied";
  };
  box.append(button);
}

const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
