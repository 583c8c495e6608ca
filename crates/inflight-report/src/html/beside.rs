//! The rows of a published comparison: plain calls and a ring beside each other, here and there.

use super::markup::{Table, esc, put};
use super::view::View;
use crate::text::side_by_side::{TITLE, side_by_side};

/// The section with the table and what follows from it; nothing where no profile is a row of it.
pub(super) fn section(views: &[View<'_>]) -> Option<String> {
    let found = side_by_side(views.iter().map(|view| &view.ranking))?;
    let titles = found.columns.into_iter();
    let table = Table {
        caption: TITLE.to_owned(),
        columns: titles.map(|(title, _)| title).collect(),
        rows: found.rows,
    };
    let mut html = format!(
        "<section id=\"beside\" aria-labelledby=\"beside-t\"><h2 id=\"beside-t\">Side by side\
         </h2><p class=\"lead\">{}</p>{}<ul class=\"notes\">",
        esc(&found.legend),
        table.html()
    );
    for (name, said) in &found.said {
        put!(&mut html, "<li><b>{}</b>: {}</li>", esc(name), esc(said));
    }
    html += "</ul></section>\n";
    Some(html)
}
