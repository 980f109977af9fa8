// Search finds the public name first, then the page named after the word, and what is for contributors last.
"use strict";
const wanted = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();

var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (title.toLowerCase() === `chains.${wanted}`) return score + 100;
    if (page.split("/").pop().startsWith(wanted)) score += 20;
    if (/^(design|changelog|contributing|benchmarks)/.test(page)) score -= 10;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
