//! A page that shows how a job went: one file, which needs nothing else and no network.

mod summary;
mod text;
mod timeline;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};

use plotters::prelude::*;

use crate::chart::{self, Chart, Line};
use crate::trace::Trace;

use summary::{CollectiveTime, DeviceTime, Step, Summary};
use text::{bandwidth, duration, escaped, percent, size};
use timeline::timeline;

/// Points of the chart: more steps are put together.
const MOST_POINTS: usize = 500;
/// Devices that are shown.
const MOST_DEVICES: usize = 256;
/// Processes of which the table tells who waits for whom.
const MOST_PROCESSES: usize = 16;
/// Collectives that are shown before someone asks for the others.
const FIRST_COLLECTIVES: usize = 12;
/// Collectives in the page.
const MOST_COLLECTIVES: usize = 1000;
/// The chart's sizes, for wide and narrow screens.
const CHARTS: [(&str, (u32, u32)); 2] = [("wide", (900, 320)), ("narrow", (350, 280))];

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page.
pub fn write_html(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let page = Page { trace, summary: Summary::new(trace) };
    let title = escaped(&page.title());
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n{}</header>\n<main>\n",
        page.facts()
    )?;
    for section in [page.steps(), page.devices(), page.waits(), page.collectives(), page.timelines(), page.phases()] {
        out.write_all(section.as_bytes())?;
    }
    write!(out, "</main>\n<footer>{}</footer>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n", page.remarks())
}

struct Page<'a> {
    trace: &'a Trace,
    summary: Summary,
}

impl Page<'_> {
    fn title(&self) -> String {
        let program = self.summary.main_program().map_or("no step", |program| self.program(program));
        let (processes, devices) = (self.trace.process_count, self.summary.devices.len());
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let processes = format!("{processes} process{}", if processes == 1 { "" } else { "es" });
        format!("{program}: {processes}, {devices} device{}", plural(devices))
    }

    fn program(&self, number: u32) -> &str {
        let named = self.trace.processes.iter().find_map(|process| process.programs.get(&number));
        named.map_or("a program", String::as_str)
    }

    /// The steps of the program that took most time.
    fn main_steps(&self) -> Vec<&Step> {
        let main = self.summary.main_program();
        self.summary.steps.iter().filter(|step| Some(step.program) == main).collect()
    }

    /// The most important numbers.
    fn facts(&self) -> String {
        let steps = self.main_steps();
        let mut by_duration = steps.clone();
        by_duration.sort_by_key(|step| step.duration);
        let mut facts = vec![("Steps".to_owned(), steps.len().to_string())];
        if let (Some(median), Some(slowest)) = (by_duration.get(by_duration.len() / 2), by_duration.last()) {
            facts.push(("Median step".to_owned(), duration(median.duration)));
            facts.push((format!("Slowest step ({})", slowest.run + 1), duration(slowest.duration)));
        }
        let (compute, all) = self.summary.devices.iter().fold((0, 0), |(compute, all), device| {
            (compute + device.compute, all + device.compute + device.waiting + device.moving)
        });
        if all > 0 {
            facts.push(("Computing".to_owned(), format!("{:.0} %", percent(compute, all))));
        }
        if let Some((process, waited)) = self.summary.slowest() {
            facts.push(("Waited for longest".to_owned(), format!("process {process} ({})", duration(waited))));
        }
        let facts: String = facts
            .iter()
            .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value)))
            .collect();
        format!("<dl class=\"facts\">{facts}</dl>\n")
    }

    fn steps(&self) -> String {
        let steps = self.main_steps();
        if steps.is_empty() {
            return String::new();
        }
        let together = steps.len().div_ceil(MOST_POINTS);
        let per_point = match together {
            1 => "Each step until its last device was done.".to_owned(),
            count => format!("Each point is the slowest of {count} steps."),
        };
        let shown: Vec<&Step> =
            steps.chunks(together).filter_map(|steps| steps.iter().max_by_key(|step| step.duration).copied()).collect();
        let mut html = format!(
            "<section><h2>Time per step</h2>\n<p>{per_point} The axis is logarithmic. \
             <span class=\"key compute\">computing</span> is the part in which the devices of the slowest process were not in \
             collectives, <span class=\"key step\">step</span> the whole.</p>\n"
        );
        for (class, size) in CHARTS {
            match chart_of(&shown, size) {
                Ok(svg) => {
                    let _ = write!(
                        html,
                        "<div class=\"chart {class}\" role=\"img\" aria-label=\"{}\">{svg}</div>\n",
                        described(&shown)
                    );
                }
                Err(error) => tracing::debug!("the chart cannot be drawn: {error}"),
            }
        }
        html + "</section>\n"
    }

    fn devices(&self) -> String {
        let mut html = "<section><h2>Devices</h2>\n<p>Their time in steps: \
             <span class=\"key compute\">computing</span>, <span class=\"key waiting\">waiting</span> in collectives for \
             others to come, and <span class=\"key moving\">exchanging</span> once all are there.</p>\n<div class=\"processes\">\n"
            .to_owned();
        let devices = &self.summary.devices[..self.summary.devices.len().min(MOST_DEVICES)];
        for of_process in devices.chunk_by(|a, b| a.process == b.process) {
            let index = of_process[0].process;
            let Some(process) = self.trace.processes.iter().find(|it| it.identity.process_index == index) else {
                continue;
            };
            let identity = &process.identity;
            let _ = write!(
                html,
                "<article><h3>process {index}</h3><p class=\"place\">{}, slice {}, pid {}</p>\n",
                escaped(&identity.host),
                identity.slice,
                identity.pid
            );
            of_process.iter().for_each(|device| html.push_str(&bar_of(device)));
            html.push_str("</article>\n");
        }
        html.push_str("</div>\n");
        match self.summary.devices.len() - devices.len() {
            0 => {}
            more => {
                let _ = writeln!(html, "<p>{more} more devices are not shown.</p>");
            }
        }
        html + "</section>\n"
    }

    fn waits(&self) -> String {
        let Some((slowest, waited)) = self.summary.slowest() else { return String::new() };
        let count = self.summary.waits.len();
        let mut html = format!(
            "<section><h2>Who waits for whom</h2>\n<p>In collectives, the others waited {} in all for process {slowest}, which \
             came last.</p>\n",
            duration(waited)
        );
        let shown = count.min(MOST_PROCESSES);
        let most = self.summary.waits.iter().flatten().max().copied().unwrap_or(0);
        html.push_str("<div class=\"scroll\"><table class=\"matrix\"><caption>Time that the process of a row waited for that of a column</caption><thead><tr><td></td>");
        for other in 0..shown {
            let _ = write!(html, "<th scope=\"col\">for {other}</th>");
        }
        html.push_str("</tr></thead><tbody>\n");
        for (process, row) in self.summary.waits.iter().enumerate().take(shown) {
            let _ = write!(html, "<tr><th scope=\"row\">process {process}</th>");
            for (other, &waited) in row.iter().enumerate().take(shown) {
                if process == other {
                    html.push_str("<td>–</td>");
                } else {
                    let _ =
                        write!(html, "<td style=\"--share:{:.0}%\">{}</td>", percent(waited, most), duration(waited));
                }
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
        if shown < count {
            let _ = writeln!(html, "<p>The first {shown} of {count} processes.</p>");
        }
        html + "</section>\n"
    }

    fn collectives(&self) -> String {
        let all = &self.summary.collectives[..self.summary.collectives.len().min(MOST_COLLECTIVES)];
        let fastest = all.iter().map(|it| it.busbw).fold(0.0, f64::max);
        let mut html = "<section><h2>Collectives</h2>\n".to_owned();
        if all.is_empty() {
            let why = match self.trace.process_count {
                1 => {
                    "One process has all devices: the plugin carries its collectives out by itself, and they count as computing."
                }
                _ => "None between processes.",
            };
            let _ = writeln!(html, "<p>{why}</p></section>");
            return html;
        }
        html.push_str(
            "<p>Time from when the last device has come until the last process is done, and the bus bandwidth that follows, \
             by nccl-tests' formulas.</p>\n",
        );
        let (first, rest) = all.split_at(all.len().min(FIRST_COLLECTIVES));
        html.push_str(&table_of(first, fastest));
        if !rest.is_empty() {
            let _ =
                write!(html, "<details><summary>{} more</summary>{}</details>\n", rest.len(), table_of(rest, fastest));
        }
        html + "</section>\n"
    }

    fn timelines(&self) -> String {
        let times = self.trace.processes.iter().flat_map(|process| {
            let phases = process.phases.iter().map(|phase| phase.end);
            phases.chain(process.events.iter().map(|event| event.times().1))
        });
        let end = times.max().unwrap_or(0);
        let mut html = "<section><h2>Timeline</h2>\n<p><span class=\"key phase\">phases</span> \
             <span class=\"key compute\">steps</span> <span class=\"key moving\">collectives</span> \
             <span class=\"key waiting\">waits</span> — p0 is process 0. <span class=\"scripted\">Drag to move, pinch or \
             use the buttons to zoom, tap a bar for what it is.</span></p>\n"
            .to_owned();
        let mut steps = self.main_steps();
        steps.sort_by_key(|step| step.duration);
        let mut windows = Vec::new();
        if let (Some(slowest), Some(typical)) = (steps.last(), steps.get(steps.len() / 2)) {
            windows.push(("typical", format!("A typical step ({})", typical.run + 1), (typical.start, typical.end)));
            if slowest.run != typical.run {
                windows.push((
                    "slowest",
                    format!("The slowest step ({})", slowest.run + 1),
                    (slowest.start, slowest.end),
                ));
            }
        }
        windows.push(("whole", "The whole job".to_owned(), (0, end)));
        for (id, title, (start, end)) in windows {
            let margin = if id == "whole" { 0 } else { (end - start) / 50 };
            html.push_str(&timeline(self.trace, id, &title, (start.saturating_sub(margin), end + margin)));
        }
        html + "</section>\n"
    }

    /// What processes do once in a while, longest first.
    fn phases(&self) -> String {
        let mut longest: Vec<(&str, usize, u64, u32)> = Vec::new();
        for process in &self.trace.processes {
            for phase in &process.phases {
                let time = phase.end - phase.start;
                let index = process.identity.process_index;
                match longest.iter_mut().find(|(name, ..)| *name == phase.name) {
                    Some((_, count, max, slowest)) => {
                        *count += 1;
                        if time > *max {
                            (*max, *slowest) = (time, index);
                        }
                    }
                    None => longest.push((&phase.name, 1, time, index)),
                }
            }
        }
        longest.sort_by_key(|(.., time, _)| std::cmp::Reverse(*time));
        let row = |(name, count, time, process): &(&str, usize, u64, u32)| {
            let (name, time) = (escaped(name), duration(*time));
            format!("<tr><th scope=\"row\">{name}</th><td>{time}</td><td>process {process}</td><td>{count}</td></tr>\n")
        };
        let rows: String = longest.iter().map(row).collect();
        format!(
            "<section><h2>Beside the steps</h2>\n<div class=\"scroll\"><table><thead><tr><th scope=\"col\">phase</th>\
             <th scope=\"col\">longest</th><th scope=\"col\">on</th><th scope=\"col\">times, all processes</th></tr></thead>\
             <tbody>\n{rows}</tbody></table></div></section>\n"
        )
    }

    fn remarks(&self) -> String {
        let mut remarks = vec![format!("Made by spmd-run {}.", env!("CARGO_PKG_VERSION"))];
        if self.trace.clock_error > 0 {
            let error = duration(self.trace.clock_error);
            remarks.push(format!("Clocks of different hosts may be off against each other by up to {error}."));
        }
        match self.trace.dropped() {
            0 => {}
            dropped => remarks.push(format!("{dropped} older events were dropped: the numbers are of the rest.")),
        }
        let missing: Vec<String> = self.trace.missing().iter().map(u32::to_string).collect();
        if !missing.is_empty() {
            remarks.push(format!("Nothing is known of process {}.", missing.join(", ")));
        }
        remarks.iter().map(|remark| format!("<p>{}</p>", escaped(remark))).collect()
    }
}

/// A device's time as a bar of three parts.
fn bar_of(device: &DeviceTime) -> String {
    let DeviceTime { id, kind, compute, waiting, moving, .. } = device;
    let all = compute + waiting + moving;
    let kind = escaped(kind);
    if all == 0 {
        return format!("<div class=\"device\"><span>device {id} ({kind})</span><span>no step</span></div>\n");
    }
    let parts =
        [("compute", "computing", *compute), ("waiting", "waiting", *waiting), ("moving", "exchanging", *moving)];
    let described: Vec<String> =
        parts.iter().map(|(_, name, time)| format!("{name} {:.0} %", percent(*time, all))).collect();
    let bar: String = parts
        .iter()
        .map(|(class, _, time)| format!("<i class=\"{class}\" style=\"width:{:.1}%\"></i>", percent(*time, all)))
        .collect();
    format!(
        "<div class=\"device\"><span>device {id} ({kind})</span><span>{}</span><div class=\"bar\" role=\"img\" \
         aria-label=\"{described}\" title=\"{described}\">{bar}</div></div>\n",
        duration(all),
        described = described.join(", ")
    )
}

fn table_of(collectives: &[CollectiveTime], fastest: f64) -> String {
    let row = |it: &CollectiveTime| {
        format!(
            "<tr><th scope=\"row\">{}<small>{}, {} devices</small></th><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td style=\"--share:{:.0}%\">{}</td></tr>\n",
            escaped(&it.name),
            escaped(&it.opcode),
            it.ranks,
            size(it.bytes),
            it.calls,
            duration(it.total),
            duration(it.median),
            it.busbw / fastest.max(1.0) * 100.0,
            bandwidth(it.busbw)
        )
    };
    let rows: String = collectives.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table class=\"matrix collectives\"><thead><tr><th scope=\"col\">collective</th><th scope=\"col\">bytes</th>\
         <th scope=\"col\">calls</th><th scope=\"col\">total</th><th scope=\"col\">median</th><th scope=\"col\">busbw</th></tr>\
         </thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// The chart in words.
fn described(steps: &[&Step]) -> String {
    let times = || steps.iter().map(|step| step.duration);
    let (fastest, slowest) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    format!("Time per step, between {} and {}, over {} points", duration(fastest), duration(slowest), steps.len())
}

/// The time of steps as SVG.
fn chart_of(steps: &[&Step], size: (u32, u32)) -> Result<String, Box<dyn Error>> {
    chart::use_own_font()?;
    let line = |name: &str, color, time: fn(&Step) -> u64| Line {
        name: name.to_owned(),
        color,
        is_dashed: false,
        points: steps.iter().map(|step| ((step.run + 1) as f64, time(step) as f64)).collect(),
    };
    // The page's style gives the lines their colours.
    let chart = Chart {
        title: String::new(),
        x_title: "step".to_owned(),
        x_is_log: false,
        x_text: |step| format!("{step:.0}"),
        y_text: |time| duration(time as u64),
        lines: vec![
            line("computing", chart::SECOND, |step| step.compute),
            line("step", chart::FIRST, |step| step.duration),
        ],
    };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        chart.draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}
