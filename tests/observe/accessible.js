// Return what a screen reader, a keyboard or weak eyes would stumble over on a page, as an array of words.
() => {
  const wrong = [];

  // Names
  const name = (each) => each.textContent.trim() || each.labels?.[0]?.textContent.trim() || each.getAttribute("aria-label") || each.alt;
  const named = "button, input, select, a, summary, [role=img], [role=progressbar], [role=region], [role=group]";
  for (const each of document.querySelectorAll(named)) if (each.checkVisibility() && !name(each)) wrong.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  for (const each of document.querySelectorAll("table")) if (!each.caption && !each.closest("details")) wrong.push("a table without a caption");
  for (const attribute of ["aria-labelledby", "aria-controls", "aria-describedby"])
    for (const each of document.querySelectorAll(`[${attribute}]`))
      if (!document.getElementById(each.getAttribute(attribute))) wrong.push(`${attribute} of ${each.id} refers to nothing`);
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size < ids.length) wrong.push("an id twice");

  // Order of headings and of the focus
  let level = 0;
  for (const each of document.querySelectorAll(".page:not([hidden]) :is(h1, h2, h3)")) {
    if (!each.checkVisibility()) continue;
    const here = Number(each.tagName[1]);
    if (here > level + 1) wrong.push(`a level is left out before the heading ${each.textContent}`);
    level = here;
  }
  if (document.querySelector("[tabindex]:not([tabindex='0'], [tabindex='-1'])")) wrong.push("an order of the focus of its own");

  // Contrast of texts with their background (WCAG 2.2, 1.4.3)
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return [...parts.slice(0, 3).map((each) => each * (text.startsWith("color(") ? 255 : 1)), parts[3] ?? 1];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((each, place) => each * a + under[place] * (1 - a));
  const paper = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
    return layers.reduceRight((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  const light = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, place) => sum + weight * linear(colour[place] / 255), 0);
  for (const element of document.querySelectorAll("body *")) {
    const is_text = [...element.childNodes].some((each) => each.nodeType === Node.TEXT_NODE && each.textContent.trim());
    if (!is_text || !element.checkVisibility({ visibilityProperty: true }) || element.closest(".sr, .skip, :disabled, title, option")) continue;
    const style = getComputedStyle(element);
    const under = paper(element);
    const ink = over(parse(element.closest("svg") ? style.fill : style.color), under);
    const [one, two] = [light(ink), light(under)];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const pixels = parseFloat(style.fontSize);
    const is_large = pixels >= 24 || (pixels >= 18.66 && style.fontWeight >= 700);
    if (ratio < (is_large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${element.className} ${element.textContent.slice(0, 30)}`);
  }

  // Cells that lie over each other
  for (const each of document.querySelectorAll("td"))
    if (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX === "visible") wrong.push(`too narrow: ${each.className} ${each.textContent.slice(0, 30)}`);
  return wrong;
}
