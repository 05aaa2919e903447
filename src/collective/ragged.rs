use std::io::IoSlice;

use crate::dtype::DType;
use crate::transport::{Segment, TransportError};

use super::engine::Call;
use super::exchange::Exchange;
use super::group::{Group, Part};
use super::scratch::{Scratch, ScratchPool};
use super::spec::CollectiveSpec;

/// Where rows go, then the rows.
const TARGETS: u32 = 0;
const ROWS: u32 = 1;

const INPUT: usize = 0;
const OUTPUT: usize = 1;
const INPUT_OFFSETS: usize = 2;
const SEND_SIZES: usize = 3;
const OUTPUT_OFFSETS: usize = 4;
const RECV_SIZES: usize = 5;

/// Bytes of one entry of the first message: offset in the target's output and number of rows.
const ENTRY: usize = 16;

/// Why a ragged all-to-all could not run.
pub(super) enum RaggedError {
    /// Offsets or sizes that do not fit the arrays or each other.
    Call(String),
    Transport(TransportError),
}

impl From<TransportError> for RaggedError {
    fn from(error: TransportError) -> RaggedError {
        RaggedError::Transport(error)
    }
}

/// Rows from one device to another.
struct Update {
    input_offset: usize,
    output_offset: usize,
    rows: usize,
}

struct Ragged<'a> {
    spec: &'a CollectiveSpec,
    group: &'a Group,
    row_size: usize,
    /// Updates per pair of devices.
    updates: usize,
}

/// Runs a ragged all-to-all. `calls` are the local devices' in rank order.
pub(super) fn ragged_all_to_all(
    spec: &CollectiveSpec,
    group: &Group,
    calls: &mut [Call],
    exchange: &Exchange<'_>,
    scratch: &ScratchPool,
) -> Result<(), RaggedError> {
    let row: usize = spec.operands[INPUT].dims[1..].iter().product();
    let entries = spec.operands[INPUT_OFFSETS].dims[0];
    let ragged = Ragged {
        spec,
        group,
        row_size: row * spec.operands[INPUT].dtype.size(),
        updates: entries / group.members.len().max(1),
    };
    ragged.run(calls, exchange, scratch)
}

impl Ragged<'_> {
    fn run(&self, calls: &mut [Call], exchange: &Exchange<'_>, scratch: &ScratchPool) -> Result<(), RaggedError> {
        let local = &self.group.parts[self.group.mine];
        let peers = || self.group.peers();
        let mut targets: Vec<Scratch> = peers().map(|part| scratch.take(self.targets_size(part, local))).collect();
        let mut posted = Vec::with_capacity(targets.len());
        for (part, targets) in peers().zip(&mut targets) {
            // SAFETY: scratch memory that is declared before the receives and read only after them.
            posted.push(unsafe { exchange.post(part.process, TARGETS, vec![Segment::new(targets)])? });
        }
        let our_targets: Vec<Vec<u8>> = peers().map(|part| self.targets(calls, part)).collect::<Result<_, _>>()?;
        let mut lent = Vec::with_capacity(our_targets.len());
        for (part, targets) in peers().zip(&our_targets) {
            lent.push(exchange.lend(part.process, TARGETS, &[IoSlice::new(targets)])?);
        }
        for (part, receive) in peers().zip(posted) {
            exchange.finish(part.process, receive)?;
        }
        for (part, loan) in peers().zip(lent) {
            exchange.reclaim(part.process, loan)?;
        }
        let mut incoming = Vec::with_capacity(targets.len());
        for (part, targets) in peers().zip(&targets) {
            let updates = self.check_targets(calls, part, targets)?;
            let rows: usize = updates.iter().map(|(.., update)| update.rows).sum();
            incoming.push((part, updates, scratch.take(rows * self.row_size)));
        }
        let mut posted = Vec::with_capacity(incoming.len());
        for (part, _, rows) in &mut incoming {
            // SAFETY: as above.
            posted.push(unsafe { exchange.post(part.process, ROWS, vec![Segment::new(rows)])? });
        }
        let mut lent = Vec::with_capacity(incoming.len());
        for part in peers() {
            let calls = &*calls;
            let mut slices = Vec::new();
            for call in calls {
                for &to in &part.ranks {
                    for update in self.updates(call, to)? {
                        slices.push(IoSlice::new(self.input_rows(call, &update)));
                    }
                }
            }
            lent.push(exchange.lend(part.process, ROWS, &slices)?);
        }
        for (part, receive) in peers().zip(posted) {
            exchange.finish(part.process, receive)?;
        }
        for (part, loan) in peers().zip(lent) {
            exchange.reclaim(part.process, loan)?;
        }
        for call in calls.iter_mut() {
            let output = call.args[OUTPUT];
            call.results[0].bytes_mut().copy_from_slice(output.bytes());
        }
        self.write_local(calls)?;
        for (_, updates, rows) in &incoming {
            let mut rest = &rows[..];
            for (to, update) in updates {
                let (head, tail) = rest.split_at(update.rows * self.row_size);
                self.write(calls, *to, update, head);
                rest = tail;
            }
        }
        Ok(())
    }

    fn targets_size(&self, from: &Part, to: &Part) -> usize {
        from.ranks.len() * to.ranks.len() * self.updates * ENTRY
    }

    /// What the process of `part` has to know of our updates.
    fn targets(&self, calls: &[Call], part: &Part) -> Result<Vec<u8>, RaggedError> {
        let mut bytes = Vec::new();
        for call in calls {
            for &to in &part.ranks {
                for update in self.updates(call, to)? {
                    bytes.extend_from_slice(&(update.output_offset as u64).to_le_bytes());
                    bytes.extend_from_slice(&(update.rows as u64).to_le_bytes());
                }
            }
        }
        Ok(bytes)
    }

    /// The updates that a process announced, with the index of the local call that each is for.
    fn check_targets(&self, calls: &[Call], from: &Part, targets: &[u8]) -> Result<Vec<(usize, Update)>, RaggedError> {
        let mut entries = targets.as_chunks::<ENTRY>().0.iter();
        let mut updates = Vec::with_capacity(entries.len());
        for &source in &from.ranks {
            for (to, call) in calls.iter().enumerate() {
                for (index, entry) in entries.by_ref().take(self.updates).enumerate() {
                    let (offset, rows) = entry.split_at(8);
                    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
                    let update = Update {
                        input_offset: 0,
                        output_offset: usize::try_from(word(offset)).unwrap_or(usize::MAX),
                        rows: usize::try_from(word(rows)).unwrap_or(usize::MAX),
                    };
                    self.check_update(call, source, index, &update)?;
                    updates.push((to, update));
                }
            }
        }
        Ok(updates)
    }

    /// Checks an update from rank `source` against the receiving device's operands.
    fn check_update(&self, call: &Call, source: usize, index: usize, update: &Update) -> Result<(), RaggedError> {
        let (sender, receiver) = (self.group.members[source], self.group.members[call.rank]);
        let expected = self.number(call, RECV_SIZES, source * self.updates + index)?;
        if update.rows != expected {
            return Err(RaggedError::Call(format!(
                "device {sender} sends {} rows to device {receiver}, whose recv_sizes say {expected}",
                update.rows
            )));
        }
        let rows = self.spec.operands[OUTPUT].dims[0];
        if update.output_offset.checked_add(update.rows).is_none_or(|end| end > rows) {
            return Err(RaggedError::Call(format!(
                "device {sender} sends {} rows to offset {} of device {receiver}, whose output has {rows}",
                update.rows, update.output_offset
            )));
        }
        Ok(())
    }

    /// What a local device sends to rank `to`.
    fn updates(&self, call: &Call, to: usize) -> Result<Vec<Update>, RaggedError> {
        let rows = self.spec.operands[INPUT].dims[0];
        let entries = to * self.updates..(to + 1) * self.updates;
        entries
            .map(|entry| {
                let update = Update {
                    input_offset: self.number(call, INPUT_OFFSETS, entry)?,
                    output_offset: self.number(call, OUTPUT_OFFSETS, entry)?,
                    rows: self.number(call, SEND_SIZES, entry)?,
                };
                match update.input_offset.checked_add(update.rows) {
                    Some(end) if end <= rows => Ok(update),
                    _ => Err(RaggedError::Call(format!(
                        "device {} sends {} rows from offset {} of its input, which has {rows}",
                        self.group.members[call.rank], update.rows, update.input_offset
                    ))),
                }
            })
            .collect()
    }

    fn input_rows<'b>(&self, call: &'b Call, update: &Update) -> &'b [u8] {
        &call.args[INPUT].bytes()[update.input_offset * self.row_size..][..update.rows * self.row_size]
    }

    fn write_local(&self, calls: &mut [Call]) -> Result<(), RaggedError> {
        for from in 0..calls.len() {
            for to in 0..calls.len() {
                let (source, target) = (calls[from].rank, calls[to].rank);
                for (index, update) in self.updates(&calls[from], target)?.into_iter().enumerate() {
                    self.check_update(&calls[to], source, index, &update)?;
                    let input = calls[from].args[INPUT];
                    let rows = &input.bytes()[update.input_offset * self.row_size..][..update.rows * self.row_size];
                    self.write(calls, to, &update, rows);
                }
            }
        }
        Ok(())
    }

    fn write(&self, calls: &mut [Call], to: usize, update: &Update, rows: &[u8]) {
        let start = update.output_offset * self.row_size;
        calls[to].results[0].part_mut(start..start + rows.len()).copy_from_slice(rows);
    }

    /// Entry `index` of one of the lists of offsets and sizes.
    fn number(&self, call: &Call, operand: usize, index: usize) -> Result<usize, RaggedError> {
        let dtype = self.spec.operands[operand].dtype;
        let bytes = &call.args[operand].bytes()[index * dtype.size()..][..dtype.size()];
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let negative = matches!(dtype, DType::S32 | DType::S64) && bytes.last().is_some_and(|top| top & 0x80 != 0);
        let number = usize::try_from(u64::from_le_bytes(word)).ok().filter(|_| !negative);
        number.ok_or_else(|| {
            RaggedError::Call(format!(
                "device {} has a negative number in its offsets and sizes",
                self.group.members[call.rank]
            ))
        })
    }
}
