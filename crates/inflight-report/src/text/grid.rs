//! Rows of texts as columns on the screen.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::paint::{Paint, Screen};

/// A title, and whether what stands below it is set to the right.
pub(crate) type Column<'t> = (&'t str, bool);

/// Draws rows below their titles; each row has a paint of its own.
pub(super) fn draw(screen: &mut Screen, columns: &[Column<'_>], rows: &[(Vec<String>, Paint)]) {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.iter().map(|(title, _)| *title));
    for (row, _) in rows {
        table.add_row(row);
    }
    for (at, (_, right)) in columns.iter().enumerate() {
        if *right && let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let paints = rows.iter().map(|(_, paint)| *paint);
    for (line, paint) in table.lines().zip([Paint::Plain].into_iter().chain(paints)) {
        screen.line(line, paint);
    }
}
