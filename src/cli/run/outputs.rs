//! What a run tells: its results, and the report on it.

use serde_json::{Value, json};
use spmd_run::host_array::npz::{self, NpyArray};
use spmd_run::host_array::{Comparison, HostArray, compare};
use spmd_run::launch::shipped;
use spmd_run::runtime::{Executable, GlobalArray, Plan, Runtime, StepTimes};

use super::{Failure, Options};
use crate::cli::Format;
use crate::cli::report::{links_text, print, table, time};

/// What is told about a run.
pub struct Report {
    format: Format,
    header: Vec<(&'static str, String)>,
    about: Value,
    results: Vec<Vec<String>>,
    /// The global results, in the form that is asked for.
    arrays: Vec<(String, Value)>,
    /// How long the steps took.
    pub steps: Option<StepTimes>,
    comparisons: Vec<(String, Comparison)>,
}

impl Report {
    pub fn new(runtime: &Runtime, executable: &Executable<'_>, plan: Plan, format: Format) -> Report {
        let platform = runtime.topology().processes().first().map(|process| process.platform.clone());
        let platform = platform.unwrap_or_default();
        let transport = runtime.transport_name();
        let mut devices = format!("{} ({platform}): {}", plan.device_count(), plan.layout_text());
        if let Some(transport) = transport {
            devices += &format!(", over {transport}");
        }
        let mut header =
            vec![("program", format!("{}, {}", executable.name(), plan.parts_text())), ("devices", devices)];
        header.extend(runtime.links().map(|links| ("links", links_text(&links))));
        let about = json!({
            "program": executable.name(),
            "num_replicas": plan.replicas,
            "num_partitions": plan.partitions,
            "process_count": plan.processes,
            "device_count": plan.device_count(),
            "platform": platform,
            "transport": transport,
            "links": runtime.links(),
            "notes": executable.notes(),
            "arguments": arrays_json("arg", executable.parameters()),
            "results": arrays_json("out", executable.results()),
        });
        let results = executable.results().iter().enumerate().map(|(index, result)| {
            let shard = result.shard_text().unwrap_or_else(|error| error.to_string());
            vec![format!("out{index}"), result.shape_text(), result.sharding.to_string(), shard]
        });
        Report {
            format,
            header,
            about,
            results: results.collect(),
            arrays: Vec::new(),
            steps: None,
            comparisons: Vec::new(),
        }
    }

    /// Writes the report to standard output.
    pub fn print(&self) -> Result<(), Failure> {
        print(&match self.format {
            Format::Text => self.text(),
            Format::Json => format!("{}\n", self.as_json()),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.header {
            text += &format!("{name:<8} {value}\n");
        }
        if let Some(steps) = &self.steps {
            text += &format!(
                "steps    {}: min {}, median {}, p99 {}\n",
                steps.steps,
                time(steps.min),
                time(steps.median),
                time(steps.p99)
            );
        }
        if !self.results.is_empty() {
            text += "\n";
            text += &table(&["result", "shape", "sharding", "per device"], &self.results);
        }
        for (name, array) in &self.arrays {
            text += &format!("\n{name} =\n{}\n", array.as_str().unwrap_or_default());
        }
        if !self.comparisons.is_empty() {
            text += "\n";
            for (name, comparison) in &self.comparisons {
                text += &format!("{name}: {comparison}\n");
            }
        }
        text
    }

    fn as_json(&self) -> Value {
        let mut report = self.about.clone();
        if let Some(steps) = &self.steps {
            report["steps"] = json!(steps);
        }
        if !self.comparisons.is_empty() {
            let rows: Vec<Value> = self
                .comparisons
                .iter()
                .map(|(name, comparison)| {
                    json!({
                        "name": name,
                        "bitwise_equal": comparison.bitwise_equal,
                        "is_close": comparison.is_close(),
                        "mismatches": comparison.mismatches,
                        "max_abs_difference": comparison.max_abs_difference,
                        "max_rel_difference": comparison.max_rel_difference,
                    })
                })
                .collect();
            report["expect"] = rows.into();
        }
        if !self.arrays.is_empty() {
            report["values"] = self.arrays.iter().cloned().collect();
        }
        report
    }
}

impl Options {
    /// Prints, writes and compares the global results, as asked. False if they are not as expected.
    pub(super) fn deliver(&self, arrays: &[HostArray], replicas: usize, report: &mut Report) -> Result<bool, Failure> {
        let named = || arrays.iter().enumerate().map(|(index, array)| (format!("out{index}"), array));
        if self.print {
            let shown = |array: &HostArray| match report.format {
                Format::Text => array.to_string().into(),
                Format::Json => array.to_json(),
            };
            report.arrays = named().map(|(name, array)| (name, shown(array))).collect();
        }
        if let Some(path) = &self.output {
            npz::write_npz(path, named()).map_err(Failure::program)?;
        }
        let Some(path) = &self.expect else { return Ok(true) };
        let mut expected = npz::read_npz(&shipped(path)).map_err(Failure::program)?;
        if expected.len() != arrays.len() {
            return Err(Failure::program(anyhow::anyhow!(
                "{}: holds {} results, the program has {}",
                path.display(),
                expected.len(),
                arrays.len()
            )));
        }
        for (name, array) in named() {
            let expected = expected
                .remove(&name)
                .ok_or_else(|| Failure::program(anyhow::anyhow!("{}: holds no '{name}'", path.display())))?;
            let comparison = self.compare(array, expected, replicas).map_err(Failure::program)?;
            report.comparisons.push((name, comparison));
        }
        Ok(report.comparisons.iter().all(|(_, comparison)| comparison.is_close()))
    }

    /// Compares a result with what is expected, of each replica or of every one.
    fn compare(&self, array: &HostArray, expected: NpyArray, replicas: usize) -> anyhow::Result<Comparison> {
        let expected = match array.dims().split_first() {
            Some((_, dims)) if replicas > 1 && expected.dims() == dims => {
                let one = expected.into_host_array(array.dtype(), dims)?;
                HostArray::new(array.dtype(), array.dims().to_vec(), one.data().repeat(replicas))?
            }
            _ => expected.into_host_array(array.dtype(), array.dims())?,
        };
        Ok(compare(array, &expected, self.rtol, self.atol)?)
    }
}

fn arrays_json(prefix: &str, arrays: &[GlobalArray]) -> Vec<Value> {
    let described = arrays.iter().enumerate().map(|(index, array)| {
        json!({
            "name": format!("{prefix}{index}"),
            "dtype": array.dtype.name(),
            "dims": array.dims,
            "sharding": array.sharding.to_string(),
        })
    });
    described.collect()
}
