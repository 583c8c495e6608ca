//! The page in a browser: what only layout can tell.
//!
//! Chromium is started without a window where it is installed; elsewhere the test says so. It
//! opens a page that holds the report in frames of several widths, looks into them, and posts what
//! it saw to the test, which waits for that and for nothing else: how long a browser takes to
//! start, and which of its threads run when, is nobody's guess.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use inflight_report::html;
use serde::Deserialize;

use crate::html::full;

/// Widths of a telephone, a laptop and a large screen.
const WIDTHS: [u32; 3] = [390, 1280, 1920];

/// Width of a sheet of A4 without the margins that browsers leave.
const PAPER: u32 = 717;

/// When a browser that says nothing is given up. It takes 3 s where nothing else runs.
const GIVEN_UP: Duration = Duration::from_secs(180);

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
// Whatever can be done can be done without a mouse, and where one is can be seen.
function keyboard(frame) {
  const page = frame.contentDocument;
  const faults = [];
  for (const thing of page.querySelectorAll("a[href], button, summary, [tabindex]")) {
    if (!thing.checkVisibility()) continue;
    const name = `${thing.tagName} ${thing.textContent.slice(0, 40)}`;
    thing.focus();
    const look = getComputedStyle(thing);
    if (page.activeElement !== thing || thing.tabIndex !== 0) faults.push(`not reached: ${name}`);
    if (look.outlineStyle === "none" || parseFloat(look.outlineWidth) < 2) {
      faults.push(`focus is not seen: ${name}`);
    }
    const place = thing.getBoundingClientRect();
    const on_top = page.elementFromPoint(place.left + place.width / 2, place.top + 8);
    if (!thing.contains(on_top) && !on_top?.contains(thing)) faults.push(`covered: ${name}`);
  }
  return faults;
}
// What paper shows: the rules for it apply to this frame.
function paper(frame) {
  const page = frame.contentDocument;
  const faults = [];
  for (const rule of page.styleSheets[0].cssRules) {
    if (rule.media?.mediaText === "print") rule.media.mediaText = "all";
  }
  const width = page.documentElement.clientWidth;
  for (const table of page.querySelectorAll("table")) {
    const name = table.caption?.textContent ?? "a table";
    if (!table.checkVisibility()) faults.push(`${name}: not printed`);
    if (table.getBoundingClientRect().right > width) faults.push(`${name}: too wide`);
  }
  for (const part of page.querySelectorAll("body *:not(.of)")) {
    const clips = getComputedStyle(part).overflowX !== "visible";
    if (clips && part.scrollWidth > part.clientWidth + 1) faults.push(`cut off: ${part.className}`);
  }
  if (page.documentElement.scrollWidth > width) faults.push("wider than the paper");
  return faults;
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
  const [sheet, ...frames] = document.querySelectorAll("iframe");
  const [printed, keys] = [paper(sheet), frames.flatMap(keyboard)];
  const seen = frames.map(look);
  seen[0].faults.push(...printed, ...keys);
  for (const [at, frame] of frames.entries()) seen[at].saved = await saved(frame);
  await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
});
"#;

/// Answers one request: a page, or the acceptance of what was seen, which it returns.
fn answer(mut stream: TcpStream, around: &str, report: &str) -> io::Result<Option<String>> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut asked, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut asked)?;
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, page) = match asked.split(' ').nth(1) {
        Some("/") => ("200 OK", around),
        Some("/report.html") => ("200 OK", report),
        Some("/seen") => ("200 OK", ""),
        _ => ("404 Not Found", ""),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )?;
    let seen = asked.starts_with("POST /seen ");
    Ok(seen.then(|| String::from_utf8_lossy(&body).into_owned()))
}

/// Serves both pages for as long as the test runs; what the browser posts arrives in the receiver.
fn serve(listener: TcpListener, around: String, report: String) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A connection that the browser opens ahead and never uses must not hold up others.
            let (around, report) = (around.clone(), report.clone());
            let sender = sender.clone();
            thread::spawn(move || {
                if let Ok(Some(seen)) = stream.and_then(|stream| answer(stream, &around, &report)) {
                    // A test that has given up does not listen any more.
                    let _ = sender.send(seen);
                }
            });
        }
    });
    receiver
}

/// A browser that ends with the test, however the test ends.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The browser, which writes what it has to say to `told`; `None` where there is none.
fn chromium(address: &str, profile: &Path, told: &File) -> io::Result<Option<Browser>> {
    let started = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
        .args(["--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync"])
        .args(["--no-proxy-server", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(address)
        .stdout(Stdio::null())
        .stderr(told.try_clone()?)
        .spawn();
    match started {
        Ok(child) => Ok(Some(Browser(child))),
        Err(error) => {
            println!("skipped: chromium cannot be started: {error}");
            Ok(None)
        }
    }
}

/// What the browser posts; a browser that ends before, or says nothing at all, is a failure.
fn wait_for(seen: &Receiver<String>, browser: &mut Browser, told: &Path) -> String {
    let end = Instant::now() + GIVEN_UP;
    loop {
        match seen.recv_timeout(Duration::from_millis(100)) {
            Ok(seen) => return seen,
            Err(RecvTimeoutError::Disconnected) => panic!("nobody serves the page any more"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let ended = browser.0.try_wait().expect("the browser is our child");
        if ended.is_some() || Instant::now() > end {
            let told = fs::read_to_string(told).unwrap_or_default();
            panic!("the browser has told nothing; ended: {ended:?}; its words: {told}");
        }
    }
}

#[test]
fn the_page_is_laid_out_on_screens_and_paper_and_can_be_used_with_keys() {
    let directory = tempfile::tempdir().unwrap();
    let frame = |width: &u32| {
        format!(
            "<iframe src=\"report.html\" style=\"width:{width}px;height:900px;border:0\"></iframe>"
        )
    };
    let frames: String = [&PAPER].into_iter().chain(&WIDTHS).map(frame).collect();
    let icon = "<link rel=\"icon\" href=\"data:,\">";
    let around = format!("<!DOCTYPE html>{icon}<body>{frames}<script>{LOOK}</script></body>");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let posted = serve(listener, around, html::page(&full()));
    let told = directory.path().join("told");
    let profile = directory.path().join("profile");
    let file = File::create(&told).unwrap();
    let Some(mut browser) = chromium(&address, &profile, &file).unwrap() else {
        return;
    };
    let seen = wait_for(&posted, &mut browser, &told);
    drop(browser);
    let told = fs::read_to_string(&told).unwrap();
    let complaints: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let seen: Vec<Seen> = serde_json::from_str(&seen).unwrap();
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
