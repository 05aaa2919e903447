//! Times as bars on lines, which the page's script can zoom into.

use std::fmt::Write;

use crate::trace::{Event, Trace};

use super::text::{duration, escaped, moment};

/// Bars of one timeline, about: more are joined.
const MOST_BARS: usize = 3000;
/// Lines of one timeline.
const MOST_LINES: usize = 72;
/// Units of a drawing's width.
const WIDTH: f64 = 100_000.0;
/// Units of a line's height.
const LINE: usize = 20;

/// What a bar shows, by its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Phase,
    Step,
    Collective,
    Wait,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Phase => "phase",
            Kind::Step => "compute",
            Kind::Collective => "moving",
            Kind::Wait => "waiting",
        }
    }
}

#[derive(Clone, Debug)]
struct Bar {
    kind: Kind,
    name: String,
    start: u64,
    end: u64,
    /// How many it was joined of.
    count: usize,
}

struct Line {
    name: String,
    bars: Vec<Bar>,
}

/// The timeline between two times, in HTML, with a heading and an anchor.
pub fn timeline(trace: &Trace, id: &str, title: &str, (from, to): (u64, u64)) -> String {
    let to = to.max(from + 1);
    let mut lines = lines(trace, from, to);
    let left_out = lines.len().saturating_sub(MOST_LINES);
    lines.truncate(MOST_LINES);
    let mut resolution = (to - from) / 4000;
    while lines.iter().map(|line| line.bars.len()).sum::<usize>() > MOST_BARS {
        resolution = (resolution * 2).max(1);
        lines.iter_mut().for_each(|line| line.join(resolution));
    }
    let mut html = format!(
        "<section class=\"timeline\" id=\"{id}\" data-from=\"{from}\" data-to=\"{to}\">\n<h3>{}</h3>\n<div class=\"rows\">\n\
         <div class=\"names\" aria-hidden=\"true\">",
        escaped(title)
    );
    for line in &lines {
        let _ = write!(html, "<span>{}</span>", escaped(&line.name));
    }
    let height = LINE * lines.len().max(1);
    let _ = write!(
        html,
        "</div>\n<svg role=\"img\" aria-label=\"{}, {} on {} lines\" viewBox=\"0 0 {WIDTH} {height}\" height=\"{height}\" \
         preserveAspectRatio=\"none\">",
        escaped(title),
        duration(to - from),
        lines.len()
    );
    for (index, line) in lines.iter().enumerate() {
        line.draw(&mut html, index * LINE, from, to);
    }
    let _ = write!(
        html,
        "</svg>\n</div>\n<div class=\"scale\"><span>{}</span><span>{}</span><span>{}</span></div>\n\
         <output aria-live=\"polite\"></output>\n",
        moment(from),
        duration(to - from),
        moment(to)
    );
    if left_out > 0 {
        let _ = writeln!(html, "<p>{left_out} more lines are in the trace (--trace).</p>");
    }
    html + "</section>\n"
}

/// A line for each process's phases, each device, and each sequence of collectives, as far as something happened there.
fn lines(trace: &Trace, from: u64, to: u64) -> Vec<Line> {
    let mut lines = Vec::new();
    let is_in = |start: u64, end: u64| start < to && end > from;
    for process in &trace.processes {
        let identity = &process.identity;
        let index = identity.process_index;
        let phases = process.phases.iter().filter(|phase| is_in(phase.start, phase.end));
        let phases = phases.map(|phase| Bar::new(Kind::Phase, phase.name.clone(), phase.start, phase.end)).collect();
        lines.push(Line { name: format!("p{index} controller"), bars: phases });
        let mut of_devices: Vec<[Vec<Bar>; 2]> = identity.devices.iter().map(|_| [Vec::new(), Vec::new()]).collect();
        for event in &process.events {
            let (start, end) = event.times();
            if !is_in(start, end) {
                continue;
            }
            let name = |program: u32, key: u32| {
                process.collectives.get(&(program, key)).map_or("a collective", |it| &*it.name).to_owned()
            };
            let (device, line, bar) = match *event {
                Event::Step { device, run, .. } => {
                    (device, 0, Bar::new(Kind::Step, format!("step {}", run + 1), start, end))
                }
                Event::Call { device, program, key, .. } => {
                    (device, 0, Bar::new(Kind::Collective, name(program, key), start, end))
                }
                Event::Collective { lane, program, key, .. } => {
                    (lane, 1, Bar::new(Kind::Collective, name(program, key), start, end))
                }
                Event::Wait { lane, peer, .. } => {
                    (lane, 1, Bar::new(Kind::Wait, format!("wait for process {peer}"), start, end))
                }
            };
            if let Some(bars) = of_devices.get_mut(device as usize) {
                bars[line].push(bar);
            }
        }
        for (device, [on_device, collectives]) in (identity.first_device..).zip(of_devices) {
            lines.push(Line { name: format!("p{index} device {device}"), bars: on_device });
            lines.push(Line { name: format!("p{index} exchange"), bars: collectives });
        }
    }
    lines.retain(|line| !line.bars.is_empty());
    // What lies within something else is drawn over it.
    lines.iter_mut().for_each(|line| line.bars.sort_by_key(|bar| (bar.kind, bar.start)));
    lines
}

impl Bar {
    fn new(kind: Kind, name: String, start: u64, end: u64) -> Bar {
        Bar { kind, name, start, end, count: 1 }
    }
}

impl Line {
    /// Joins neighbours that are shorter and closer to each other than could be seen.
    fn join(&mut self, resolution: u64) {
        let mut joined: Vec<Bar> = Vec::new();
        for bar in std::mem::take(&mut self.bars) {
            match joined.last_mut() {
                Some(last)
                    if last.kind == bar.kind
                        && bar.start.saturating_sub(last.end) < resolution
                        && (bar.end - bar.start).max((last.end - last.start) / last.count as u64) < resolution =>
                {
                    last.end = last.end.max(bar.end);
                    last.count += bar.count;
                }
                _ => joined.push(bar),
            }
        }
        self.bars = joined;
    }

    fn draw(&self, html: &mut String, top: usize, from: u64, to: u64) {
        let x = |time: u64| (time.clamp(from, to) - from) as f64 / (to - from) as f64 * WIDTH;
        for same in self.bars.chunk_by(|a, b| a.kind == b.kind) {
            let (inset, height) = match same[0].kind {
                Kind::Phase | Kind::Step => (3, LINE - 6),
                Kind::Collective => (5, LINE - 10),
                Kind::Wait => (7, LINE - 14),
            };
            let _ = write!(html, "\n<g class=\"{}\">", same[0].kind.class());
            for bar in same {
                let (start, end) = (x(bar.start), x(bar.end));
                let name = match bar.count {
                    1 => escaped(&bar.name),
                    count => format!("{count} from {} on", escaped(&bar.name)),
                };
                let _ = write!(
                    html,
                    "<rect x=\"{start:.0}\" y=\"{}\" width=\"{:.0}\" height=\"{height}\"><title>{name}: {}</title></rect>",
                    top + inset,
                    (end - start).max(1.0),
                    duration(bar.end - bar.start)
                );
            }
            html.push_str("</g>");
        }
    }
}
