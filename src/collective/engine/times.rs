use crate::collective::exchange::InstanceId;
use crate::collective::spec::{ArraySpec, CollectiveSpec};
use crate::trace::{self, Event, ExchangeTimes, Recorder};

use super::instruction::Instruction;

/// What the timeline is told of one call.
pub(super) struct Times {
    recorder: &'static Recorder,
    /// Local devices with when they came, in that order.
    arrivals: Vec<(u32, u64)>,
    exchange: ExchangeTimes,
}

impl Times {
    /// For a call of a group; `None` if nobody wants to know.
    pub fn new(instruction: &Instruction, group: u32) -> Option<Times> {
        let recorder = trace::recorder()?;
        let lane = instruction.first_local_device(group);
        Some(Times { recorder, arrivals: Vec::new(), exchange: ExchangeTimes::new(lane) })
    }

    pub fn arrive(&mut self, local_device: u32) {
        self.arrivals.push((local_device, trace::now()));
    }

    /// Where an exchange keeps the time.
    pub fn of_exchange(&self) -> (&'static Recorder, &ExchangeTimes) {
        (self.recorder, &self.exchange)
    }

    /// Records the call: its devices are about to go on.
    pub fn record(&self, id: &InstanceId, local_ranks: usize) {
        let end = trace::now();
        let InstanceId { key, run, group, trip, .. } = *id;
        let program = id.program as u32;
        for &(device, start) in &self.arrivals {
            self.recorder.push(&Event::Call { device, program, key, run, start, end });
        }
        // What some local devices never came to was not begun.
        let (Some(&(_, start)), Some(&(_, last))) = (self.arrivals.first(), self.arrivals.last()) else { return };
        if self.arrivals.len() == local_ranks {
            self.recorder.push(&Event::Collective {
                lane: self.exchange.lane(),
                group,
                program,
                key,
                run,
                trip: trip as u32,
                start,
                gathered: u32::try_from(last - start).unwrap_or(u32::MAX),
                end,
                exchanged: self.exchange.nanoseconds(),
            });
        }
    }
}

/// What the timeline is told of an instruction.
pub(super) fn describe(program: u64, instruction: &Instruction) {
    let Some(recorder) = trace::recorder() else { return };
    let Instruction { spec, members, .. } = instruction;
    recorder.name_collective(
        program as u32,
        spec.key,
        trace::Collective {
            name: spec.name.clone(),
            opcode: spec.kind.opcode().to_owned(),
            bytes: size(spec),
            groups: members.clone(),
            busbw_factors: members.iter().map(|group| spec.kind.busbw_factor(group.len())).collect(),
        },
    );
}

/// As nccl-tests counts it.
fn size(spec: &CollectiveSpec) -> u64 {
    let total = |arrays: &[ArraySpec]| arrays.iter().filter_map(ArraySpec::size).map(|size| size as u64).sum::<u64>();
    total(&spec.operands).max(total(&spec.results))
}
