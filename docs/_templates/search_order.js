// How the search orders pages: those that are named after a word of the question come first, then
// titles, exact names of the API, pages that have the words, and names that contain one.
"use strict";
const QUESTION = (new URLSearchParams(location.search).get("q") || "").toLowerCase();
const WORDS = QUESTION.split(/[^a-z0-9]+/).filter((word) => word.length > 2);
const LAST = /^(docs\/evidence\/|docs\/reference\/api\/|CHANGELOG)/;
var Scorer = {
  objNameMatch: 25,
  objPartialMatch: 0,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 30,
  partialTitle: 14,
  term: 10,
  partialTerm: 4,
  score: ([page, title, , , score, , kind]) => {
    if (kind === "object") return score - title.split(".").length;
    const name = page.split("/").pop().toLowerCase();
    const named = WORDS.some((word) => name.includes(word));
    return score + (named ? 20 : 0) - (LAST.test(page) ? 10 : 0);
  },
};
