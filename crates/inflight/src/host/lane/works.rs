//! What a pass asks of a lane's proactor.

use crate::completion::Answer;
use crate::host::driver::hand_over;
use crate::host::flow::HELD_MAX;
use crate::host::mail::Taken;
use crate::host::pass::Works;
use crate::proactor::Proactor;

impl Works for Proactor {
    fn announce(&mut self, is_wanted: bool) {
        self.announce(is_wanted);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight()
    }

    fn room(&self) -> u32 {
        match self.has_room() {
            true => self.capacity() - self.in_flight(),
            false => 0,
        }
    }

    fn take(&mut self, taken: &mut Taken) {
        hand_over(self, taken);
    }

    fn turn(&mut self, at_least: u32, answers: &mut Vec<(u32, Answer)>) {
        let deliver = |token, answer| answers.push((token, answer));
        match at_least {
            0 => self.turn(0, deliver),
            // It sleeps in one place, and would not hear of the other.
            _ if self.is_in_two_places() => self.turn(0, deliver),
            _ => self.turn_or(at_least, Some(HELD_MAX), deliver),
        }
    }

    fn look(&mut self, answers: &mut Vec<(u32, Answer)>) {
        self.look(|token, answer| answers.push((token, answer)));
    }

    fn has_work(&mut self) -> bool {
        self.has_work()
    }
}
