//! Places at which processes wait for all others.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::super::report::Place;
use super::super::wire::{Body, CONTRIBUTION_LENGTH, MAX_BODY};

/// A process that waits for the others.
pub struct Arrival {
    pub call: u64,
    pub since: Instant,
    pub deadline: Instant,
    /// What it brings for all.
    pub body: Body,
    /// Half the wait is over, and that has been told.
    pub warned: bool,
}

/// Arrivals by process.
pub type Arrivals = BTreeMap<u32, Arrival>;

#[derive(Default)]
struct Meeting {
    arrivals: Arrivals,
    /// What their contributions have together, as they are sent to all.
    bytes: usize,
}

/// The meetings that are not complete.
pub struct Meetings {
    process_count: u32,
    open: HashMap<Place, Meeting>,
}

impl Meetings {
    pub fn new(process_count: u32) -> Meetings {
        Meetings { process_count, open: HashMap::new() }
    }

    /// Has a process wait at a place. With the last one the meeting is over, and all arrivals are returned.
    pub fn arrive(&mut self, process: u32, place: &Place, arrival: Arrival) -> Result<Option<Arrivals>, String> {
        let meeting = self.open.entry(place.clone()).or_default();
        if meeting.arrivals.contains_key(&process) {
            return Err(format!("process {process} is already at {place}"));
        }
        let bytes = meeting.bytes + CONTRIBUTION_LENGTH + arrival.body.len();
        if bytes > MAX_BODY {
            return Err(format!("{place} would have more than {MAX_BODY} bytes"));
        }
        meeting.bytes = bytes;
        meeting.arrivals.insert(process, arrival);
        let is_complete = meeting.arrivals.len() == self.process_count as usize;
        Ok(is_complete.then(|| self.open.remove(place).unwrap_or_default().arrivals))
    }

    /// Takes back an arrival, which has waited for too long.
    pub fn leave(&mut self, process: u32, place: &Place) {
        if let Some(meeting) = self.open.get_mut(place)
            && let Some(arrival) = meeting.arrivals.remove(&process)
        {
            meeting.bytes -= CONTRIBUTION_LENGTH + arrival.body.len();
        }
    }

    /// Ends all meetings but the last one of the job, as they cannot be any more; returns who was there.
    pub fn forsake(&mut self) -> Vec<(Place, Arrivals)> {
        let last = self.open.remove_entry(&Place::Shutdown);
        let ended = self.open.drain().map(|(place, meeting)| (place, meeting.arrivals)).collect();
        self.open.extend(last);
        ended
    }

    pub fn end(&mut self) {
        self.open.clear();
    }

    /// Who waits where.
    pub fn arrivals(&self) -> impl Iterator<Item = (&Place, u32, &Arrival)> {
        self.open.iter().flat_map(|(place, meeting)| {
            meeting.arrivals.iter().map(move |(process, arrival)| (place, *process, arrival))
        })
    }

    /// The processes that are not at a place.
    pub fn absent(&self, place: &Place) -> Vec<u32> {
        let here = self.open.get(place);
        (0..self.process_count).filter(|process| here.is_none_or(|it| !it.arrivals.contains_key(process))).collect()
    }

    /// The places at which half of someone's wait is over, each once, and since when that one waits.
    pub fn take_late(&mut self, now: Instant) -> Vec<(Place, Instant)> {
        let is_late =
            |arrival: &Arrival| !arrival.warned && now >= arrival.since + (arrival.deadline - arrival.since) / 2;
        let mut late = Vec::new();
        for (place, meeting) in &mut self.open {
            if let Some(arrival) = meeting.arrivals.values().find(|arrival| is_late(arrival)) {
                late.push((place.clone(), arrival.since));
                meeting.arrivals.values_mut().for_each(|arrival| arrival.warned = true);
            }
        }
        late
    }
}
