//! The tables of the open loop: rates that were given stand in no chart beside rates found.

use super::markup::{Table, esc, put};
use crate::open;
use crate::record::Record;
use crate::text::open::{TITLE, notes, texts, titles};

/// The section with a table for each profile that has an open loop; nothing where none has.
pub(super) fn section(record: &Record) -> Option<String> {
    let mut tables = String::new();
    for profile in &record.profiles {
        let cells = open::cells(record, profile);
        if cells.is_empty() {
            continue;
        }
        let table = Table {
            caption: format!("{}, {TITLE}", profile.title),
            columns: titles(profile)
                .into_iter()
                .map(|(title, _)| title)
                .collect(),
            rows: texts(profile, &cells),
        };
        tables += &table.html();
        tables += "<ul class=\"notes\">";
        for (label, said, _) in notes(record, profile, &cells) {
            put!(&mut tables, "<li><b>{label}</b>: {}.</li>", esc(&said));
        }
        tables += "</ul>";
    }
    (!tables.is_empty()).then(|| {
        format!(
            "<section id=\"open\" aria-labelledby=\"open-t\"><h2 id=\"open-t\">Open loop</h2>\
             <p class=\"lead\">Operations began by the clock, as those of many clients do, and \
             latencies count from when each was due. Rates were given, not found: nothing here is \
             ranked.</p>{tables}</section>\n"
        )
    })
}
