//! What is shown of a benchmark record: statistics, verdicts, text.
//!
//! Everything here is a pure function of a [`Record`]: nothing measures, reads a file or prints.
//! In order of flow: [`record`] is the stored format; [`histogram`], [`heat`], [`figures`] and
//! [`stats`] make figures of it; [`truth`] says which of them count; [`unsteady`] which are of a
//! moment; [`open`] has those of an open loop apart; [`ranking`] puts the others in order,
//! [`regret`] compares the library with the best of the others, [`verdict`] says in words what
//! follows. [`compare`] holds two records against each other and [`merged`] puts many machines
//! together. [`text`] draws the screens and [`html`] the page, [`csv`] and [`markdown`] are for
//! other programs.
//! [`doctor`] is the stored format of an examination of a machine.

pub mod doctor;
mod packed;
pub mod record;
mod whole;

pub mod figures;
pub mod heat;
pub mod histogram;
pub mod stats;

pub mod open;
pub mod ranking;
pub mod regret;
pub mod truth;
pub mod unsteady;
pub mod verdict;

pub mod compare;
pub mod merged;

pub mod csv;
pub mod html;
pub mod markdown;
pub mod text;

pub mod noun;
pub mod strategy;
mod study;
pub mod units;

pub use record::Record;

/// The JSON schema of a record; `docs/schema` has it as a file.
///
/// # Panics
/// Never: a schema is made of strings, numbers and maps with string keys.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Record).to_value()
}

/// The JSON schema of merged records; `docs/schema` has it as a file.
///
/// # Panics
/// Never: a schema is made of strings, numbers and maps with string keys.
#[must_use]
pub fn merged_schema() -> serde_json::Value {
    schemars::schema_for!(merged::Merged).to_value()
}

/// The JSON schema of an examination; `docs/schema` has it as a file.
///
/// # Panics
/// Never: a schema is made of strings, numbers and maps with string keys.
#[must_use]
pub fn doctor_schema() -> serde_json::Value {
    schemars::schema_for!(doctor::Examination).to_value()
}
