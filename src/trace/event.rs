use serde::{Deserialize, Serialize};

use super::ring::WORDS;

/// Something that happens again and again. Times are in nanoseconds, devices local ordinals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A device ran a program once.
    Step {
        /// Which.
        device: u32,
        /// The program's number.
        program: u32,
        /// The execution's, from 0.
        run: u64,
        /// When the process started it.
        start: u64,
        /// When the device was done.
        end: u64,
    },
    /// A device was in a collective.
    Call {
        /// Which.
        device: u32,
        /// The program's number.
        program: u32,
        /// The instruction's, within the program.
        key: u32,
        /// The execution of the program, from 0.
        run: u64,
        /// When it came to it.
        start: u64,
        /// When it could go on.
        end: u64,
    },
    /// A process carried out a collective for its devices in one group.
    Collective {
        /// The first of these devices.
        lane: u32,
        /// The group's number.
        group: u32,
        /// The program's number.
        program: u32,
        /// The instruction's, within the program.
        key: u32,
        /// The execution of the program, from 0.
        run: u64,
        /// The call within the execution, from 0.
        trip: u32,
        /// When the first device came to it.
        start: u64,
        /// How much later the last one did.
        gathered: u32,
        /// When it was over.
        end: u64,
        /// The time of waiting for other processes and of giving them what is not small; the rest since the last device came is
        /// combining and copying.
        exchanged: u64,
    },
    /// A process waited for another one in a collective.
    Wait {
        /// The first local device of the collective's group.
        lane: u32,
        /// The process that was waited for.
        peer: u32,
        /// Since when.
        start: u64,
        /// Until when.
        end: u64,
    },
}

const STEP: u64 = 1;
const CALL: u64 = 2;
const COLLECTIVE: u64 = 3;
const WAIT: u64 = 4;

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Event {
    pub(super) fn to_words(self) -> [u64; WORDS] {
        match self {
            Event::Step { device, program, run, start, end } => {
                [STEP, start, end, pair(device, 0), pair(program, 0), run, 0, 0]
            }
            Event::Call { device, program, key, run, start, end } => {
                [CALL, start, end, pair(device, 0), pair(program, key), run, 0, 0]
            }
            Event::Collective { lane, group, program, key, run, trip, start, gathered, end, exchanged } => {
                [COLLECTIVE, start, end, pair(lane, group), pair(program, key), run, pair(trip, gathered), exchanged]
            }
            Event::Wait { lane, peer, start, end } => [WAIT, start, end, pair(lane, peer), 0, 0, 0, 0],
        }
    }

    pub(super) fn of_words([kind, start, end, place, name, run, rest, exchanged]: [u64; WORDS]) -> Option<Event> {
        let ((lane, second), (program, key), (trip, gathered)) = (halves(place), halves(name), halves(rest));
        Some(match kind {
            STEP => Event::Step { device: lane, program, run, start, end },
            CALL => Event::Call { device: lane, program, key, run, start, end },
            COLLECTIVE => {
                Event::Collective { lane, group: second, program, key, run, trip, start, gathered, end, exchanged }
            }
            WAIT => Event::Wait { lane, peer: second, start, end },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_ring() {
        for event in [
            Event::Step { device: 1, program: 2, run: 3, start: 4, end: 5 },
            Event::Call { device: 1, program: 2, key: 3, run: 4, start: 5, end: 6 },
            Event::Collective {
                lane: 1,
                group: 2,
                program: 3,
                key: 4,
                run: u64::MAX,
                trip: 5,
                start: 6,
                gathered: u32::MAX,
                end: 8,
                exchanged: 9,
            },
            Event::Wait { lane: 1, peer: 2, start: 3, end: 4 },
        ] {
            assert_eq!(Event::of_words(event.to_words()), Some(event));
        }
        assert_eq!(Event::of_words([0; WORDS]), None);
    }
}
