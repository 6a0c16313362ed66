"""The look of the page: inline, light and dark, from a phone's width to a desk's."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c1e21; --soft: #5b6169; --line: #dfe2e6; --tint: #f5f6f8;
  --accent: #0b62a3;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171a; --ink: #e7e9ec; --soft: #a3a9b1; --line: #33373d; --tint: #1e2125;
    --accent: #7cc0f5;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 56px; }
h1 { font-size: clamp(1.55rem, 5vw, 2.2rem); line-height: 1.2; margin: 0 0 .35em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 2.2em 0 .5em; padding-top: .9em;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.9em 0 .6em; }
p { margin: .5em 0; max-width: 75ch; }
a { color: var(--accent); }
.lede, .soft, figcaption { color: var(--soft); }
.soft, figcaption { font-size: .9rem; }
.soft { max-width: 95ch; }
header + section h2 { margin-top: 1em; }
nav ul { margin: .3em 0; padding-left: 1.3em; }
nav p { margin: 1em 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 1.1em 0; padding: 0; list-style: none; }
.tiles li { background: var(--tint); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; }
.tiles .name { display: block; color: var(--soft); font-size: .86rem; }
.tiles .value { display: block; font-size: 1.6rem; font-weight: 650; line-height: 1.35; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; margin: .9em 0; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; white-space: nowrap; vertical-align: baseline; }
.prose tbody th { white-space: normal; min-width: 15em; }
thead th { background: var(--tint); color: var(--soft); font-weight: 600; font-size: .84rem;
  vertical-align: bottom; white-space: normal; }
th:first-child, th.words, td.words { text-align: left; }
td.words { white-space: normal; min-width: 15em; }
tbody th { position: sticky; left: 0; background: var(--paper); font-weight: 500; }
thead th:first-child { position: sticky; left: 0; }
tbody { border-top: 1px solid var(--line); }
.pm, .of { color: var(--soft); }
.of { display: inline-block; min-width: 4.9em; font-size: .86em; text-align: left; }
.key { width: 1.05em; height: 1.05em; margin-right: .5em; vertical-align: -.17em; }
.overall { font-weight: 750; }
.group { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: 3px; }
.figures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 22px; }
@media (max-width: 720px) {
  main { padding: 20px 14px 40px; }
  .figures { grid-template-columns: minmax(0, 1fr); }
  header + section h2 { margin-top: 1em; }
nav ul { margin: .3em 0; padding-left: 1.3em; }
nav p { margin: 1em 0 0; }
.tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  th, td { padding: 6px 9px; }
}
figure { margin: 0; min-width: 0; }
figure h4 { margin: 0 0 .45em; font-size: 1rem; }
.card { background: #ffffff; border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 10px 8px; }
.card svg { display: block; width: 100%; height: auto; }
figcaption { margin: .45em 2px 0; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; white-space: pre-wrap; overflow-wrap: anywhere; margin: .6em 0;
  font: .88rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 18px;
  margin: .8em 0; }
dt { color: var(--soft); }
dd { margin: 0; }
details { margin: .9em 0; }
summary { cursor: pointer; color: var(--accent); }
@media print {
  main { max-width: none; padding: 0; }
  figure, tr { break-inside: avoid; }
}
"""
