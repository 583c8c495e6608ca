//! Tests of the public interface, on synthetic records and on fixtures of other packages.

mod browser;
mod builder;
mod certainty;
mod compare;
mod confirmed;
mod doctor;
mod exports;
mod histogram;
mod html;
mod limits;
mod merged;
mod open;
mod regressions;
mod regret;
mod rounds;
mod schema;
mod side_by_side;
mod stats;
mod text;
mod truth;
mod verdict;
