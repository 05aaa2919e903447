//! What the links between the processes of a job carry, as far as the choice of algorithms depends on it.
//!
//! All processes measure at once, each with one other that it sends to and one that it receives from: the next and the one
//! before it on its island, then its counterparts on the next island and the one before. So nothing is asked of a link that a
//! collective would not ask of it, and a rate is what there is while everyone sends. The rendezvous tells all what each
//! one saw; the slowest counts, so that all decide alike.

use std::collections::HashMap;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::collective::{Cluster, Link, Links, islands};
use crate::trace;
use crate::transport::{Loan, Receive, Segment, Tag, Transport, Wait};

use super::{RuntimeError, Topology, World};

/// The links of a job, and how they are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobLinks {
    /// What they carry.
    #[serde(flatten)]
    pub links: Links,
    /// Whether they were measured; else they were given.
    pub is_measured: bool,
}

/// The first word of the tags of these messages: no program has this number.
const PROGRAM: u64 = u64::MAX;

/// Small messages whose times make up a latency, after a first one for which threads wake.
const ROUNDS: usize = 9;

/// Larger messages of each size, after a first one.
const TRIES: usize = 3;

/// Sizes in bytes of the messages whose times tell a rate, until one takes long enough to do so.
const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// A message tells a rate if it takes so long, and a few times the latency.
const TELLING_SECONDS: f64 = 3e-3;
const TELLING_LATENCIES: f64 = 4.0;

/// When this is over, the last message has to do.
const LIMIT_SECONDS: f64 = 0.08;

/// The cluster by which collectives are to be predicted, where their choice depends on it: where there are several islands and
/// some have several processes. Process 0 says whether its links are `given`.
pub(super) fn find(
    world: &World,
    topology: &Topology,
    transport: &dyn Transport,
    given: Option<Links>,
) -> Result<Option<(JobLinks, Cluster)>, RuntimeError> {
    let islands = islands(&topology.slices(), Some(transport));
    let by_island = grouped(&islands);
    if by_island.len() < 2 || by_island.len() == islands.len() {
        return Ok(None);
    }
    let hosts = hosts(topology, &islands);
    let given = world.from_first("links", || Ok::<_, RuntimeError>(given))?;
    let links = match given {
        Some(links) => links,
        None => measure(world, transport, &by_island, &hosts)?,
    };
    let found = JobLinks { links, is_measured: given.is_none() };
    let devices = topology.devices_per_process();
    let processes = (0..).zip(devices).flat_map(|(process, count)| std::iter::repeat_n(process, count as usize));
    Ok(Some((found, Cluster::new(processes.collect(), hosts, islands, links))))
}

/// Indices by value, in the order in which values come first.
fn grouped(values: &[u32]) -> Vec<Vec<u32>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for (index, value) in (0..).zip(values) {
        let place = *places.entry(value).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// A dense number for the host of each process. No host is part of two islands, whatever its name.
fn hosts(topology: &Topology, islands: &[u32]) -> Vec<u32> {
    let mut numbers = HashMap::new();
    let names = topology.processes().iter().map(|process| &*process.host);
    let number = |key| {
        let next = numbers.len() as u32;
        *numbers.entry(key).or_insert(next)
    };
    islands.iter().zip(names).map(number).collect()
}

/// Seconds that messages took on this process; `None` where it had no part in them.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Seen {
    ici: Option<f64>,
    dcn: Option<f64>,
    /// Seconds since this process began to measure.
    elapsed: f64,
}

fn measure(
    world: &World,
    transport: &dyn Transport,
    by_island: &[Vec<u32>],
    hosts: &[u32],
) -> Result<Links, RuntimeError> {
    let _phase = trace::phase("measure links");
    let begin = Instant::now();
    let mut rings = Rings::new(world, transport, by_island);
    let elapsed = || begin.elapsed().as_secs_f64();
    let seen = Seen { ici: rings.ici.latency()?, dcn: rings.dcn.latency()?, elapsed: elapsed() };
    let seen = world.all_gather("links/latency", seen)?;
    let latency = [slowest(&seen, |it| it.ici), slowest(&seen, |it| it.dcn)];
    let [mut ici, mut dcn] = [None, None];
    for size in SIZES {
        let seen = Seen {
            ici: if ici.is_none() { rings.ici.time_of(size)? } else { None },
            dcn: if dcn.is_none() { rings.dcn.time_of(size)? } else { None },
            elapsed: elapsed(),
        };
        let seen = world.all_gather(&format!("links/{size}"), seen)?;
        let is_last = Some(&size) == SIZES.last() || slowest(&seen, |it| Some(it.elapsed)) > Some(LIMIT_SECONDS);
        let tells = |time: &f64, latency: Option<f64>| {
            is_last || *time >= TELLING_SECONDS + TELLING_LATENCIES * latency.unwrap_or_default()
        };
        if let Some(time) = slowest(&seen, |it| it.ici).filter(|time| tells(time, latency[0])) {
            ici = Some(rate(size, time, latency[0]));
        }
        if let Some(time) = slowest(&seen, |it| it.dcn).filter(|time| tells(time, latency[1])) {
            dcn = Some(rate(size, time, latency[1]) * senders_of_a_host(&seen, hosts) as f64);
        }
        if ici.is_some() && dcn.is_some() {
            break;
        }
    }
    let link = |rate: Option<f64>, latency: Option<f64>| Link {
        bytes_per_second: rate.unwrap_or(f64::INFINITY),
        latency_seconds: latency.unwrap_or_default(),
    };
    let links = Links { ici: link(ici, latency[0]), dcn: link(dcn, latency[1]) };
    tracing::debug!("measured links in {:?}: {links:?}", begin.elapsed());
    Ok(links)
}

/// How many processes of a host sent to other islands, where these were fewest.
fn senders_of_a_host(seen: &[Seen], hosts: &[u32]) -> usize {
    let mut senders = HashMap::new();
    for (host, _) in hosts.iter().zip(seen).filter(|(_, seen)| seen.dcn.is_some()) {
        *senders.entry(host).or_insert(0) += 1;
    }
    senders.into_values().min().unwrap_or(1)
}

fn slowest(seen: &[Seen], of: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    seen.iter().filter_map(of).reduce(f64::max)
}

/// Bytes per second of a message, which goes when its receiver has said where to.
fn rate(size: usize, time: f64, latency: Option<f64>) -> f64 {
    size as f64 / (time - 2.0 * latency.unwrap_or_default()).max(time / 2.0)
}

/// Whom this process measures with.
struct Rings<'a> {
    ici: Ring<'a>,
    dcn: Ring<'a>,
}

impl<'a> Rings<'a> {
    fn new(world: &World, transport: &'a dyn Transport, by_island: &[Vec<u32>]) -> Rings<'a> {
        let this = world.process_index();
        let at = |island: &Vec<u32>| island.iter().position(|&process| process == this);
        let places = by_island.iter().enumerate();
        let (island, place) = places.filter_map(|(index, island)| Some((index, at(island)?))).next().unwrap_or((0, 0));
        let counterparts: Vec<u32> = by_island.iter().filter_map(|island| island.get(place).copied()).collect();
        let has_all = counterparts.len() == by_island.len();
        let ring = |class, processes: &[u32], place| Ring::new(transport, class, processes, place, world.limit());
        Rings {
            ici: ring(0, &by_island[island], place),
            dcn: if has_all { ring(1, &counterparts, island) } else { ring(1, &[], 0) },
        }
    }
}

/// Processes of which each one sends to the next.
struct Ring<'a> {
    transport: &'a dyn Transport,
    class: u64,
    /// Who sends to this process, and whom it sends to; `None` where it would be itself.
    neighbours: Option<(u32, u32)>,
    steps: u64,
    limit: Duration,
}

impl<'a> Ring<'a> {
    fn new(transport: &'a dyn Transport, class: u64, processes: &[u32], place: usize, limit: Duration) -> Ring<'a> {
        let count = processes.len();
        let neighbours = (count > 1).then(|| (processes[(place + count - 1) % count], processes[(place + 1) % count]));
        Ring { transport, class, neighbours, steps: 0, limit }
    }

    /// Seconds from sending a small message to having the one that the process before sent.
    fn latency(&mut self) -> Result<Option<f64>, RuntimeError> {
        self.shift(1)?;
        let mut times = (0..ROUNDS).map(|_| self.shift(1)).collect::<Result<Vec<_>, _>>()?;
        times.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        Ok(times[ROUNDS / 2])
    }

    /// Seconds in which messages of this size go around by one process, at best: a process may be kept from its processor
    /// for as long. The first ones bring all together, and use up what a network lets pass above its rate.
    fn time_of(&mut self, size: usize) -> Result<Option<f64>, RuntimeError> {
        self.shift(size)?;
        let times = (0..TRIES).map(|_| self.shift(size)).collect::<Result<Vec<_>, _>>()?;
        Ok(times.into_iter().flatten().reduce(f64::min))
    }

    fn shift(&mut self, size: usize) -> Result<Option<f64>, RuntimeError> {
        let Some((previous, next)) = self.neighbours else { return Ok(None) };
        let tag = Tag([PROGRAM, self.class, 0, self.steps, size as u64]);
        self.steps += 1;
        let (data, mut into) = (vec![1; size], vec![2; size]);
        let begin = Instant::now();
        let wait = Wait { deadline: begin + self.limit, judge: &|_| None };
        // SAFETY: nothing touches `into` until the receive is finished or, before it goes out of scope, dropped.
        let receive =
            unsafe { Receive::post(self.transport, previous, tag, vec![Segment::new(&mut into)], wait.deadline)? };
        let loan = Loan::new(self.transport, next, tag, &[IoSlice::new(&data)], &wait)?;
        receive.finish(&wait)?;
        loan.finish(&wait)?;
        Ok(Some(begin.elapsed().as_secs_f64()))
    }
}
