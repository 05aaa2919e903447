//! The report for people.

use spmd_run::inspect::{Array, Collective, Inspection, LinkBytes, Loop, Memory, Partitioner, explain_id_mode};

use super::{CountedBy, Report};
use crate::cli::report::table;

pub fn report(report: &Report) -> String {
    let inspection = &report.inspection;
    let mut text = header(report);
    text += &arrays("argument", &inspection.arguments);
    text += &arrays("result", &inspection.results);
    text += &loops(&inspection.loops);
    text += &collectives(inspection);
    text += &custom_calls(inspection);
    text += &work(inspection);
    text
}

fn header(report: &Report) -> String {
    let inspection = &report.inspection;
    let devices = |count: u32, noun: &str, by: CountedBy| match by {
        CountedBy::Default => counted(count.into(), noun),
        _ => format!("{} ({})", counted(count.into(), noun), counted_by(by)),
    };
    let partitioner = match inspection.partitioner {
        Partitioner::None => "none, there is one partition",
        Partitioner::AlreadyPartitioned if inspection.is_scheduled => "none, the program was compiled before",
        Partitioner::AlreadyPartitioned => "none, the program was partitioned before",
        Partitioner::Gspmd => "XLA's GSPMD",
        Partitioner::Shardy => "XLA's Shardy",
    };
    let how = if inspection.runs_whole {
        "the plugin gets the program as it is".to_owned()
    } else {
        let calls = counted(inspection.bridged_collectives as u64, "collective");
        format!("{calls} by spmd-run, the others by the plugin")
    };
    let slices = match inspection.slice_count {
        1 => String::new(),
        slices => format!(" in {slices} slices"),
    };
    let lines = [
        ("program", format!("{}, {} in {}", inspection.name, report.form, report.file)),
        (
            "devices",
            format!(
                "{} × {}",
                devices(inspection.num_replicas, "replica", report.num_replicas_from),
                devices(inspection.num_partitions, "partition", report.num_partitions_from)
            ),
        ),
        ("partitioner", partitioner.to_owned()),
        (
            "layout",
            format!(
                "{} × {}{slices}: {how}",
                counted(inspection.process_count.into(), "process"),
                counted(inspection.devices_per_process.into(), "device")
            ),
        ),
        (
            "per device",
            format!(
                "{} in {}",
                counted(inspection.instructions as u64, "instruction"),
                counted(inspection.computations as u64, "computation")
            ),
        ),
    ];
    let notes = inspection.notes.iter().map(|note| ("note", note.clone()));
    lines.into_iter().chain(notes).map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn counted_by(by: CountedBy) -> &'static str {
    match by {
        CountedBy::Header => "says the header",
        CountedBy::Shardings => "by its shardings",
        CountedBy::Collectives => "by its collectives",
        CountedBy::Option => "by option",
        CountedBy::Layout => "by the layout, the program says nothing",
        CountedBy::Default => "by default",
    }
}

fn arrays(noun: &str, arrays: &[Array]) -> String {
    if arrays.is_empty() {
        return String::new();
    }
    let any_shared = arrays.iter().any(|array| array.is_donated || array.aliased_with.is_some());
    let rows: Vec<Vec<String>> = arrays
        .iter()
        .map(|array| {
            let dims = array.dims_per_device.as_ref().map(|dims| {
                let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
                format!("{}[{}]", array.dtype.unwrap_or_default(), dims.join(","))
            });
            let mut row = vec![
                array.name.clone(),
                array.shape.clone(),
                array.sharding.clone(),
                dims.unwrap_or_else(|| "?".to_owned()),
                array.bytes_per_device.map_or_else(|| "?".to_owned(), bytes),
            ];
            if any_shared {
                row.push(match (&array.aliased_with, array.is_donated) {
                    (Some(other), true) => format!("becomes {other}"),
                    (Some(other), false) => format!("that of {other}"),
                    (None, true) => "donated".to_owned(),
                    (None, false) => String::new(),
                });
            }
            row
        })
        .collect();
    let columns = [noun, "shape", "sharding", "per device", "#bytes", "memory"];
    let columns = if any_shared { &columns[..] } else { &columns[..5] };
    format!("\n{}", table(columns, &rows))
}

fn loops(loops: &[Loop]) -> String {
    if loops.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = loops
        .iter()
        .map(|it| {
            let turns = it.trip_count.map_or_else(|| "not known".to_owned(), |count| count.to_string());
            vec![it.name.clone(), it.computation.clone(), turns]
        })
        .collect();
    format!("\n{}", table(&["loop", "in", "#turns"], &rows))
}

fn collectives(inspection: &Inspection) -> String {
    let collectives = &inspection.collectives;
    if collectives.is_empty() {
        return "\nno collectives\n".to_owned();
    }
    let links = Links { several_slices: inspection.slice_count > 1 };
    // Collectives share few groups: each is told once.
    let mut groups: Vec<(&str, &str, &str)> = Vec::new();
    let mut rows = Vec::new();
    for collective in collectives {
        let participants = &collective.participants;
        let group = (participants.id_mode, participants.description.as_str(), participants.placement.as_str());
        let number = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        let mut row = vec![
            collective.opcode.clone(),
            collective.name.clone(),
            collective.computation.clone(),
            operands(collective),
            runs(collective),
            format!("G{}", number + 1),
        ];
        row.extend(links.cells(collective.bytes_moved));
        rows.push(row);
    }
    let mut columns = vec!["collective", "name", "in", "operands", "#runs", "groups", "#bytes per device and run"];
    columns.extend(links.columns());
    let mut text = format!("\n{}\n", table(&columns, &rows));
    for (number, (_, description, placement)) in groups.iter().enumerate() {
        text += &format!("G{:<3} {description}; {placement}\n", number + 1);
    }
    let mut modes: Vec<&str> = Vec::new();
    for (mode, ..) in &groups {
        if modes.contains(mode) {
            continue;
        }
        modes.push(mode);
        let of_mode = groups.iter().enumerate().filter(|(_, group)| group.0 == *mode);
        let names: Vec<String> = of_mode.map(|(number, _)| format!("G{}", number + 1)).collect();
        text += &format!("     {} {mode}: {}\n", names.join(" "), explain_id_mode(mode));
    }
    let mut formulas: Vec<(&str, &str)> = collectives.iter().map(|it| (it.opcode.as_str(), it.formula)).collect();
    formulas.sort_unstable();
    formulas.dedup();
    let formulas: Vec<String> = formulas.iter().map(|(opcode, formula)| format!("{opcode} {formula}")).collect();
    text += &format!("bytes: {}, for n devices in a group\n", formulas.join("; "));
    let totals = &inspection.collective_totals;
    let all = [("busiest device", totals.busiest_device_bytes), ("all devices", totals.all_devices_bytes)];
    let rows: Vec<Vec<String>> =
        all.iter().map(|(who, moved)| [vec![(*who).to_owned()], links.cells(*moved)].concat()).collect();
    let columns = [&["per step", "#bytes"][..], links.columns()].concat();
    text += &format!("\n{}", table(&columns, &rows));
    let straddling = collectives.iter().filter(|collective| collective.participants.straddles_slices);
    let straddling: Vec<&str> = straddling.map(|collective| collective.name.as_str()).collect();
    if !straddling.is_empty() {
        text += &format!(
            "warning: the groups of {} are divided unevenly over slices: an axis that belongs inside a slice crosses its border\n",
            straddling.join(", ")
        );
    }
    text += &reservations(totals.has_unknown_loops, totals.has_branches);
    text
}

/// The columns of bytes.
struct Links {
    several_slices: bool,
}

impl Links {
    fn columns(&self) -> &'static [&'static str] {
        let columns = &["#inside a process", "#between processes", "#between slices"];
        if self.several_slices { columns } else { &columns[..2] }
    }

    /// All bytes, and those of each column.
    fn cells(&self, moved: LinkBytes) -> Vec<String> {
        let columns = [moved.inside_process, moved.between_processes, moved.between_slices];
        [moved.total()].into_iter().chain(columns.into_iter().take(self.columns().len())).map(bytes).collect()
    }
}

fn operands(collective: &Collective) -> String {
    const LISTED: usize = 2;
    let listed = collective.operands.iter().take(LISTED).cloned().collect::<Vec<_>>().join(" ");
    match collective.operands.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} +{more}"),
    }
}

fn runs(collective: &Collective) -> String {
    let runs = collective.runs;
    let mut text = runs.times.to_string();
    if runs.in_unknown_loop {
        text += " or more";
    }
    if runs.in_branch {
        text = format!("≤ {text}");
    }
    text
}

/// What figures leave open.
fn reservations(has_unknown_loops: bool, has_branches: bool) -> String {
    let mut text = String::new();
    if has_unknown_loops {
        text += "loops whose turns are not known count once\n";
    }
    if has_branches {
        text += "branches count as if all were taken\n";
    }
    text
}

fn custom_calls(inspection: &Inspection) -> String {
    if inspection.custom_calls.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = inspection
        .custom_calls
        .iter()
        .map(|call| {
            vec![
                call.target.clone(),
                call.instructions.to_string(),
                call.about.unwrap_or("unknown to spmd-run: the plugin must bring it").to_owned(),
            ]
        })
        .collect();
    format!("\n{}", table(&["custom call", "#instructions", "about"], &rows))
}

fn work(inspection: &Inspection) -> String {
    let cost = inspection.cost;
    let mut text = format!(
        "\nwork per device    {} flops, {} transcendentals, estimated before optimizations\n",
        grouped(cost.flops),
        grouped(cost.transcendentals)
    );
    text += &reservations(cost.has_unknown_loops, cost.has_branches);
    text += &match (&inspection.memory, &inspection.memory_error) {
        (Some(memory), _) => memory_line(memory),
        (None, Some(error)) => format!("memory per device  not known: {error}\n"),
        (None, None) => String::new(),
    };
    text
}

fn memory_line(memory: &Memory) -> String {
    let size = |size: i64| bytes(u64::try_from(size).unwrap_or(0));
    format!(
        "memory per device  at most {}: arguments {}, results {}, of these in place of arguments {}, temporaries {}\n",
        size(memory.bytes_at_most),
        size(memory.argument_bytes),
        size(memory.output_bytes),
        size(memory.alias_bytes),
        size(memory.temporary_bytes)
    )
}

/// Bytes as people read them, exact below 1 KiB.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (10 * exponent)) as f64;
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {}", UNITS[exponent - 1])
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(number: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{number} {noun}{}", if number == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(counted(2, "process"), "2 processes");
    }
}
