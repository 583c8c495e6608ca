//! A ring from inside: its alarm, looks for completions, pools that come and go, what is handed
//! over, and enters that are refused.

use super::{ALARM, FRUITLESS_MAX, MEMORY_RETRY_AFTER, Uring};

#[path = "alarm_test.rs"]
mod alarm;
#[path = "look_test.rs"]
mod look;
#[path = "pools_test.rs"]
mod pools;
#[path = "refused_test.rs"]
mod refused;
#[path = "submit_test.rs"]
mod submit;
