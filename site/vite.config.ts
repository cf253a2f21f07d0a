// Builds one HTML file. Script and style are inside it, so it opens from disk.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const SOURCES = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"];

// src/harmax/inspect/explorer/page.py computes the same digest, so that a test sees when the built file is old.
function digestOfSources(): string {
  const inside = readdirSync("src", { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).replaceAll("\\", "/"));
  const sum = createHash("sha256");
  for (const path of [...SOURCES, ...inside].sort()) {
    sum.update(`${path}\n`).update(readFileSync(path));
  }
  return sum.digest("hex");
}

function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      let script = "";
      let style = "";
      for (const [name, part] of Object.entries(bundle)) {
        if (part.type === "chunk") script += part.code;
        else if (name.endsWith(".css")) style += String(part.source);
        else continue;
        delete bundle[name];
      }
      const code = `\n${script.trim().replaceAll("</script", "<\\/script")}\n`;
      // Only this script may run, whatever the data of a page says. Nothing may be loaded.
      const allowed = createHash("sha256").update(code).digest("base64");
      const policy =
        `default-src 'none'; script-src 'sha256-${allowed}'; style-src 'unsafe-inline'; ` +
        "img-src data:; base-uri 'none'; form-action 'none'";
      for (const part of Object.values(bundle)) {
        if (part.type !== "asset" || !part.fileName.endsWith(".html")) continue;
        part.source = String(part.source)
          .replace(/<script type="module"[^>]*><\/script>/, "")
          .replace(/<link rel="(stylesheet|modulepreload)"[^>]*>/g, "")
          .replace("%POLICY%", policy)
          .replace("%SOURCES%", digestOfSources())
          .replace("</head>", () => `<style>\n${style.trim()}\n</style>\n</head>`)
          .replace("</body>", () => `<script type="module">${code}</script>\n</body>`);
      }
    },
  };
}

export default defineConfig({
  plugins: [oneFile()],
  build: {
    outDir: "../src/harmax/inspect/explorer/built",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 1_000_000,
    target: "es2022",
  },
});
