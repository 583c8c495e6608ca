//! The page in a browser: what only layout can tell.
//!
//! Chromium is started without a window where it is installed; elsewhere the test says so. It
//! opens a page that holds the report in frames of several widths, and looks into them.

use std::fs;
use std::process::{Command, Output};

use inflight_report::html;
use serde::Deserialize;

use crate::html::full;

/// Widths of a telephone, a laptop and a large screen.
const WIDTHS: [u32; 3] = [390, 1280, 1920];

/// What was seen at one width.
#[derive(Debug, Deserialize)]
struct Seen {
    width: u32,
    page_width: u32,
    charts: u32,
    drawings: u32,
    faults: Vec<String>,
    /// What the button saves.
    saved: String,
}

/// Looks into every frame; what is wrong is named.
const LOOK: &str = r#"
"use strict";
function look(frame) {
  const page = frame.contentDocument;
  const faults = [];
  const charts = [...page.querySelectorAll("figure.chart")];
  let drawings = 0;
  for (const chart of charts) {
    const room = chart.getBoundingClientRect();
    const plots = [...chart.querySelectorAll("svg.plot")];
    if (plots.length === 0) faults.push(`${chart.id}: nothing is drawn`);
    for (const plot of plots) {
      drawings += 1;
      const box = plot.getBoundingClientRect();
      if (box.width < 150 || box.height < 50) faults.push(`${chart.id}: too small to be seen`);
      const marks = [...plot.querySelectorAll("use, path.h, path.each, rect:not(.ground)")];
      const shown = marks.filter((mark) => {
        const place = mark.getBoundingClientRect();
        return place.width + place.height > 0 && place.left >= box.left - 8
          && place.right <= box.right + 8 && getComputedStyle(mark).visibility === "visible";
      });
      if (shown.length === 0) faults.push(`${chart.id}: no marks`);
      if (plot.querySelectorAll("text.label").length === 0) faults.push(`${chart.id}: no labels`);
      for (const text of plot.querySelectorAll("text")) {
        const place = text.getBoundingClientRect();
        if (place.height < 7) faults.push(`${chart.id}: illegible: ${text.textContent}`);
        if (place.left < room.left || place.right > room.right) {
          faults.push(`${chart.id}: outside: ${text.textContent}`);
        }
      }
      let end = -Infinity;
      for (const text of plot.querySelectorAll("text.tx")) {
        const place = text.getBoundingClientRect();
        if (place.left < end) faults.push(`${chart.id}: ticks overlap at ${text.textContent}`);
        end = place.right;
      }
    }
    const table = chart.querySelector("details");
    table.open = true;
    if (table.querySelectorAll("td").length === 0) faults.push(`${chart.id}: no table`);
  }
  const button = page.querySelector(".legend button");
  button.click();
  const hidden = page.querySelector(`.s[data-s="${button.dataset.s}"]`);
  if (getComputedStyle(hidden).display !== "none") faults.push("the legend hides nothing");
  return {
    width: frame.clientWidth, page_width: page.documentElement.scrollWidth,
    charts: charts.length, drawings, faults,
  };
}
async function saved(frame) {
  const inside = frame.contentWindow;
  const blob = new Promise((resolve) => {
    inside.URL.createObjectURL = (blob) => {
      resolve(blob);
      return "data:,";
    };
  });
  inside.HTMLAnchorElement.prototype.click = () => {};
  frame.contentDocument.getElementById("save").click();
  return (await blob).text();
}
addEventListener("load", async () => {
  const frames = [...document.querySelectorAll("iframe")];
  const seen = frames.map(look);
  for (const [at, frame] of frames.entries()) seen[at].saved = await saved(frame);
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
"#;

fn chromium(page: &std::path::Path, profile: &std::path::Path) -> Option<Output> {
    let started = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--allow-file-access-from-files", "--enable-logging=stderr"])
        .args([
            "--virtual-time-budget=20000",
            "--timeout=60000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output();
    match started {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: chromium can not be started: {error}");
            None
        }
    }
}

#[test]
fn the_page_is_laid_out_on_small_and_large_screens() {
    let directory = tempfile::tempdir().unwrap();
    let frame = |width: &u32| {
        format!(
            "<iframe src=\"report.html\" style=\"width:{width}px;height:900px;border:0\"></iframe>"
        )
    };
    let frames: String = WIDTHS.iter().map(frame).collect();
    let around = format!(
        "<!DOCTYPE html><body>{frames}<pre id=\"seen\"></pre><script>{LOOK}</script></body>"
    );
    let page = directory.path().join("around.html");
    fs::write(directory.path().join("report.html"), html::page(&full())).unwrap();
    fs::write(&page, around).unwrap();
    let Some(output) = chromium(&page, &directory.path().join("profile")) else {
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split_once("<pre id=\"seen\">").unwrap().1;
    let seen = seen
        .split_once("</pre>")
        .unwrap()
        .0
        .replace("&gt;", ">")
        .replace("&lt;", "<");
    let seen: Vec<Seen> = serde_json::from_str(&seen.replace("&amp;", "&")).unwrap();
    assert_eq!(
        seen.iter().map(|seen| seen.width).collect::<Vec<_>>(),
        WIDTHS
    );
    for seen in seen {
        assert!(
            seen.faults.is_empty(),
            "at {}: {:#?}",
            seen.width,
            seen.faults
        );
        assert_eq!(seen.charts, 9, "at {}", seen.width);
        let saved: serde_json::Value = serde_json::from_str(&seen.saved).unwrap();
        assert!(saved == serde_json::to_value(full()).unwrap());
        assert!(seen.drawings > 9, "at {}", seen.width);
        assert!(seen.page_width <= seen.width, "{seen:?}");
    }
}
