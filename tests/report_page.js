// What the browser tests ask of a report's page.

// Opens all folds.
function unfold() {
    document.querySelectorAll("details").forEach(one => one.open = true);
}

// The folds that a reader sees closed, or open only in part.
function closed() {
    return [...document.querySelectorAll("details")].filter(fold =>
        ![...fold.children].every(part => part.checkVisibility({contentVisibilityAuto: true}))).length;
}

// How many words are seen.
function words() {
    return document.body.innerText.trim().split(/\s+/).length;
}

// The elements that stick out of the page, and are in no box that scrolls.
function outside() {
    const scrolls = element =>
        element && (getComputedStyle(element).overflowX === "auto" || scrolls(element.parentElement));
    return [...document.body.querySelectorAll("*")].filter(element => !scrolls(element)).filter(element => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > innerWidth + 1 || box.left < -1);
    }).map(element => element.tagName + " " + element.textContent.slice(0, 40));
}

// Width and height of each figure, and whether it is there to be seen.
function drawings() {
    return [...document.querySelectorAll(".drawing > *")].map(element => {
        const box = element.getBoundingClientRect();
        return [box.width, box.height, element.checkVisibility()];
    });
}

// Titles of figures whose drawing is not as large as it was made, so that its words have another size, or that have no
// title or caption of their own.
function squeezed() {
    return [...document.querySelectorAll("figure")].filter(figure => {
        const drawing = figure.querySelector(".drawing > *");
        const inches = drawing.tagName === "IMG" ? drawing.naturalWidth / 96 : parseFloat(drawing.getAttribute("width")) / 72;
        const said = part => figure.querySelector(part).textContent.trim().length > 1;
        const wrong = Math.abs(drawing.getBoundingClientRect().width - 96 * inches) > 0.5;
        return wrong || !said("h3") || !said("figcaption");
    }).map(figure => figure.textContent.slice(0, 40));
}

// How many boxes that scroll are cut off on paper.
function cut() {
    const boxes = [...document.querySelectorAll(".scroll, .drawing")];
    return boxes.filter(box => box.firstElementChild.getBoundingClientRect().right > innerWidth + 1).length;
}

// The lowest contrast of words against what is behind them (WCAG 2).
function contrast() {
    const luminance = colour => {
        const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(
            part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        const colour = element ? getComputedStyle(element).backgroundColor : "rgb(255, 255, 255)";
        return /, 0\)$/.test(colour) ? behind(element.parentElement) : colour;
    };
    const words = document.querySelectorAll("h1, h2, p, li, strong, span, summary, td, th, a, dt, dd, figcaption");
    return Math.min(...[...words].map(element => {
        const [low, high] = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }));
}

// What a page's script has made of it: buttons to copy, tables that are sorted by their last column, up and down, and
// arms that the first button hides.
function handled() {
    const all = (what, within = document) => [...within.querySelectorAll(what)];
    const number = text => parseFloat(text.replace("−", "-").replace(/[<>, ]/g, ""));
    const tables = all("table");
    const sorted = tables.filter(table => {
        const head = [...table.tHead.rows[0].cells].at(-1);
        const values = () => {
            const words = [...table.tBodies[0].rows].map(row => row.cells[head.cellIndex].textContent);
            return head.className === "figure" ? words.map(number).filter(value => !isNaN(value)) : words;
        };
        const inOrder = (a, b) => (head.className === "figure" ? a - b : a.localeCompare(b)) <= 0;
        return [values => values, values => values.reverse()].every(turn => {
            head.click();
            const found = turn(values());
            return found.every((value, place) => !place || inOrder(found[place - 1], value));
        });
    });
    all(".copied button").forEach(button => button.click());
    all(".switches button").slice(0, 1).forEach(button => button.click());
    const drawn = all("[data-arm]");
    return {
        copies: all(".copied").length, copied: all(".copied button").filter(one => one.textContent === "Copied").length,
        tables: tables.length, sorted: sorted.length, switches: all(".switches button").length, drawn: drawn.length,
        shown: drawn.filter(part => getComputedStyle(part).display !== "none").length,
    };
}
