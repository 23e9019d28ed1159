// Draws the blocks in the language of Mermaid, which the forge draws as well. Pages without one do not load Mermaid.
const blocks = document.querySelectorAll("code.language-mermaid");
for (const code of blocks) {
  const diagram = document.createElement("div");
  diagram.className = "mermaid";
  diagram.textContent = code.textContent;
  code.closest("pre").replaceWith(diagram);
}
if (blocks.length > 0) {
  const script = document.createElement("script");
  script.src = `${path_to_root}mermaid.min.js`;
  script.onload = () => {
    mermaid.initialize({ startOnLoad: false, theme: document.documentElement.classList.contains("light") ? "default" : "dark" });
    mermaid.run();
  };
  document.head.append(script);
}
